"""The chain of records and the outer state that follows from it, in memory and on disk.

The package decides which record may follow which, which peers are the electors, and which progress, state and credit follow
from a chain.  `agreement` makes records, and `sync` chooses the branch.
`records` checks a record and its certificate, `electorate` determines the electors of the next record, `base` holds the
facts that a round stands on, `history`, `store` and `results` keep the chain, `outer_state` applies results to the
parameters, and `replica` combines these and answers other peers.  Read `records` first.
"""
