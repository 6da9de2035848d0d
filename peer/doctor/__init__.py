"""Checks of `peer doctor`: the requirements for taking part in a run, and an estimate of this computer's contribution.

`examination.py` runs all checks in order, each with a deadline.  `checks.py` has the checks of this computer and its router;
`visit.py` meets the swarm as a guest.  `peer.measurements` measures speeds.

Read `examination.py` first.
"""
