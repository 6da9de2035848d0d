"""Automatic rests of a peer: outside its hours, on battery, when hot, over its quota, or for other programs.

`reasons.py` reads the sensors, counts the month's traffic and keeps a person's pause on disk.  `keeper.py` judges the
readings and makes the peer rest and go on.  `protocol.node` decides which work a resting peer still does.

Read `keeper.py` first.
"""
