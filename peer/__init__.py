"""The client of Manyhands: the command `peer`, and the process that takes part in a run.

The process finds other peers, supervises the trainer process, keeps to its owner's limits, and reports its progress to
people.  `protocol` implements the agreement between peers and all messages between them; `trainer` computes the models.

Read `cli.py` first, then `commands/join.py`, `daemon/daemon.py` and `daemon/participation.py`, which lead from the command
line to a node that trains.
"""
