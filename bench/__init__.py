"""Measurements of batchfact; each writes JSON under bench/results/ with versions, machine and commit."""
