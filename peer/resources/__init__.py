"""Resources of this computer, the needs of a run, and the sharing of cores and disk among peers.

`computer.py` determines usable cores and memory, also in containers, and estimates the memory that a run needs.  `check.py`
refuses a run that does not fit and chooses the peer's role; `core_share.py` divides the cores among the peers here;
`room.py` limits the disk.

Read `computer.py` first.
"""
