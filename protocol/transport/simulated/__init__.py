"""A network under virtual time: links with bandwidth and delay, weather, partitions.

`network` is one peer's end of it, `wire` the links between all peers.  The same seed gives the same run.  Read `network`
first.
"""
