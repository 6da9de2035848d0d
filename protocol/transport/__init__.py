"""Connections between peers, and the traffic on them: questions, gossip and bulk data.

The rest of the protocol sees `interface` only.  `network` implements it over libp2p, which takes 0.8 s and 80 MiB to import
and is imported when a network starts.  `stack` starts the parts.  `nat` reaches peers behind home routers.  `simulated`
implements the interface under virtual time.  Read `interface` first.
"""
