"""Connections between peers, and the traffic on them: questions, gossip and bulk data.

The rest of the protocol uses only `interface`.  `network` implements the interface over libp2p and joins the parts: `dialer`
and `inbound` make connections, `requests`, `gossip` and `bulk` use them, `reputation` and `rate_limit` limit each peer's use
of our resources.  `nat` reaches peers behind home routers.  Read `interface` first.
"""
