"""Finds summaries that say things their document does not support."""

__version__ = "0.1.0"
