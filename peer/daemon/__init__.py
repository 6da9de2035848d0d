"""The running peer: starts its components, connects them, and ends them in an orderly way.

`daemon.py` is the process: socket, log, console and the wishes to leave.  `lives.py` repeats stays in the run, with
absences for a full disk or a used-up quota between them.  `participation.py` is one stay: network, trainer and node.

Rounds are decided by `protocol.node`, and rests by `peer.rests`.  Read `daemon.py` first.
"""
