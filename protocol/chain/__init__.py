"""The chain of records and the outer state that follows from it, in memory and on disk.

`records` checks a record and its certificate, `electorate` says who votes on the next one, `history` and `store` keep
them, `outer_state` is what they make of the parameters.  Read `records` first.
"""
