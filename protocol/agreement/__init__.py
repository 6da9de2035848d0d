"""Agreement of the electors on one record for each round: a two-step vote with locks.

The package decides on the time at which a round is closed, its members, and the record that ends it.  It leaves the averages
to `protocol.allreduce`, the checks of averages to `protocol.audit`, and all I/O to `protocol.node`.  Read `machine` first,
which describes the whole agreement at its top; `voter` and `proposer` are its two halves.  All safety rests on `ballot`.
"""
