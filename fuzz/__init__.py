"""Fuzzing of everything that reads text which nobody wrote for us: `python -m fuzz TARGET`."""
