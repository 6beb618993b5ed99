"""The report: scored rows in, one self-contained page out.

Pure: it knows no Parquet, no command line and no file but its own template, style sheet and scripts in `assets/`.
`rows` is what it is given, `tally` counts over all rows, `listing` packs those that the page lists, `figures` draws,
and `page` puts all of it into HTML. `batchfact.reporting` reads the scored file and fills it.
"""
