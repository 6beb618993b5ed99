"""Pairs a second of batchfact and of what people would use in its place, side by side on the same rows."""

from bench.throughput.measuring import add_arguments, measure

__all__ = ["add_arguments", "measure"]
