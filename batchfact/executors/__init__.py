"""Where pairs are scored: with one engine in this process, or with many in the processes of a Ray cluster.

Document groups and rejected rows flow in, outcomes flow out, in the order in which they finish. An executor knows
nothing of the journal, of files or of folding. `pipeline` chooses one.
"""
