"""The checks of `peer doctor`: can this computer take part in a run, and how much would it contribute?

`examination.py` runs all checks in order, each with a deadline.  `checks.py` has those of this computer and its router;
`visit.py` meets the swarm as a guest.  Speeds are measured by `peer.measurements`.

Read `examination.py` first.
"""
