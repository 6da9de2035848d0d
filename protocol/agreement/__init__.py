"""Agreement of the electors on one record for each round: a two-step vote with locks.

The package decides when a round is closed, with which members it is made, and which record ends it.  It leaves the averages
to `protocol.allreduce`, their checks to `protocol.audit`, and all I/O to `protocol.node`.  Read `machine` first, which tells
the whole story at its top; `voter` and `proposer` are its two halves.  All safety rests on `ballot`.
"""
