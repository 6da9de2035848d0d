"""Agreement of the electors on one record for each round: a two-step vote with locks.

`machine` is a pure state machine and tells the whole story at its top.  `voter` and `proposer` are its two halves, `policy`
decides when a round is closed and with which members, and all safety rests on `voting` and `ballot`.  No module here does
I/O.
"""
