"""The client of Manyhands: the command `peer`, and the process that takes part in a run.

It finds other peers, watches over the trainer process, keeps to its owner's limits, and tells people what happens.  What
peers agree on, and all bytes between them, is decided in `protocol`; models are computed in `trainer`.

Read `cli.py` first, then `commands/join.py`, `daemon/daemon.py` and `daemon/participation.py`: the way from the command
line to a node that trains.
"""
