"""How good the verdicts are: metrics, breakdowns and comparisons of scored rows that have gold labels.

`reading` turns a scored file into arrays, `evaluation` turns those into frozen records, and `tables` and `plots` show
these. Only `reading` and `plots` touch files. The package needs scikit-learn and scipy (`batchfact[eval]`), so only the
commands that use it import it.
"""
