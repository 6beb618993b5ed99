"""Engines answer requests; each is found by name through the entry-point group `batchfact.engines`."""
