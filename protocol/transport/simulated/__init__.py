"""A network in virtual time: links with bandwidth and delay, message loss, partitions.

`network` has one peer's endpoint, `wire` the links between all peers.  The same seed gives the same run.  Read `network`
first.
"""
