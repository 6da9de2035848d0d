"""Resources of this computer, the needs of a run, and the sharing of cores and disk among peers.

`computer.py` reads cores and memory within containers, and estimates the memory of a run.  `check.py` refuses a run that
does not fit and chooses the peer's role; `core_share.py` divides the cores among the peers here; `room.py` limits the disk.

Read `computer.py` first.
"""
