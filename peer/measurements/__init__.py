"""Measurements of this computer and its lines, for `peer bench` and `peer doctor`.

`speeds.py` measures codec, disk, training and lines, one after the other; `exchange.py` lets a few peers in this process
average over loopback.  `report.py` says what the figures mean for a run.

Read `speeds.py` first.
"""
