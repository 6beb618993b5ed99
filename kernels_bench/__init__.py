"""Small measurements of the parts that decide a run's speed: one kernel a file, each against a plain reference.

`python -m kernels_bench [NAMES] [--device cpu|cuda] [--json FILE]` checks that reference and candidates agree, times
them, and compares each time with its floor: the FLOPs and bytes that it needs, over what this machine does at most.
"""
