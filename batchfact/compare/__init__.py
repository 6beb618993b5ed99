"""Experiments: a grid of runs on labelled data sets, and the papers' tables of it.

An experiment file (`experiment`) has axes of options, whose points (`grid`) meet data sets (`data_sets`) in trials
(`trials`). A trial needs one cell, which is an ordinary run in the results folder (`cells`), or several where the
paradigm goes by a column. Cells run in processes of their own (`execution`); what they wrote is measured by
`batchfact.evaluate` and laid out here (`measuring`, `layouts`).
"""
