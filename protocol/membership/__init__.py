"""Peers of the run: their heartbeats, liveness and admission.

`liveness` judges whether peers are alive (pure), `heartbeats` sends and receives heartbeats, `handshake` admits peers, and
`activity` holds the present activity of this peer.  `protocol.agreement` decides the consequences of a death.  Read
`liveness` first.
"""
