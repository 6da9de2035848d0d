"""Automatic rests of a peer: outside its hours, on battery, when hot, over its quota, or for other programs.

`sensors.py` reads the sensors; `keeper.py` judges the readings and makes the peer rest and go on.  `reasons.py` counts the
month's traffic and keeps a person's pause on disk.  `protocol.node` decides which work a resting peer still does.

Read `keeper.py` first.
"""
