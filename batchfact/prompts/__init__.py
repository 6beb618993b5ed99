"""The prompts: template files, each with a small header, and the loader that compiles them for one model."""
