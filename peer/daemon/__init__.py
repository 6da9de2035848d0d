"""The running peer: starts its components, connects them, and ends them in an orderly way.

`daemon.py` is the process: socket, log, console, requests to leave, and one stay in the run after the other; between two
stays, the peer is away because of a full disk or a used-up quota (`away.py`).  `participation.py` is one stay with network,
trainer and node.

`protocol.node` decides on rounds, and `peer.rests` on rests.  Read `daemon.py` first.
"""
