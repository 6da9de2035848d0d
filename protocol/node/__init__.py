"""The parts of a peer, wired together, and its life.

`node` makes the parts, `life` runs rounds until the peer leaves, `round_runner` runs one round, `dispatcher` and
`statements` take in what others say.  Read `life` first.
"""
