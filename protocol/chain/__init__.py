"""The chain of records and the outer state that follows from it, in memory and on disk.

The package decides which record may follow which, who the electors are, and what a chain means for the run: its progress,
its state, and what it credits.  It leaves to `agreement` how a record comes about, and to `sync` which branch we are on.
`records` checks a record and its certificate, `electorate` determines the electors of the next one, `base` says what a round
stands on, `history`, `store` and `results` keep the chain, `outer_state` applies results to the parameters, and `replica`
holds all of it and answers others.  Read `records` first.
"""
