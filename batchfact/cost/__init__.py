"""What a run will cost on a device: a model's FLOPs and bytes for counts of tokens, and the least time they take.

A model's config.json and counts of tokens flow in; seconds and bytes flow out. It knows nothing of inputs, prompts or
engines.
"""
