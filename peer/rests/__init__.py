"""Rests that a peer takes by itself: outside its hours, on battery, when hot, over its quota, or for other programs.

`reasons.py` reads the sensors, counts the month's traffic and keeps a person's pause on disk.  `keeper.py` judges the
readings and lets the peer rest and go on.  What a resting peer still does is decided in `protocol.node`.

Read `keeper.py` first.
"""
