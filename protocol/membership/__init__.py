"""Peers that are here: heartbeats, liveness, and who may speak.

`liveness` judges who is alive (pure), `heartbeats` sends ours and hears those of others, `handshake` admits peers, and
`activity` is what this peer does now.  What follows from a death is left to `protocol.agreement`.  Read `liveness` first.
"""
