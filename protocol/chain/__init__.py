"""The chain of records and the outer state that follows from it, in memory and on disk.

`records` checks a record and its certificate, `electorate` determines the electors of the next one, `history` and `store`
keep them, `outer_state` applies their results to the parameters.  Read `records` first.
"""
