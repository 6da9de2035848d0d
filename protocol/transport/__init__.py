"""Connections between peers, and what travels over them: questions, gossip and bulk data.

`interface` is all that the rest of the protocol knows.  `network` implements it over libp2p (0.8 s and 80 MiB, imported
when a network starts) and `stack` starts the parts; `nat` reaches peers behind home routers; `simulated` implements it
under virtual time.  Read `interface` first.
"""
