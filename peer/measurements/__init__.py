"""Measurements of this computer and its lines, for `peer bench` and `peer doctor`.

`speeds.py` measures codec, disk, training and lines, one after another; `exchange.py` lets a few peers in this process
average over loopback.  `report.py` explains the figures for a run.

Read `speeds.py` first.
"""
