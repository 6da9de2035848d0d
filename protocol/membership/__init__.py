"""Peers that are here: heartbeats, liveness, and who may speak.

`liveness` judges the heartbeats of others, `heartbeats` sends ours, `handshake` admits peers, `activity` is what this
peer does now. Read `liveness` first.
"""
