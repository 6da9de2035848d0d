"""Connections between peers, and the traffic on them: questions, gossip and bulk data.

The rest of the protocol sees `interface` only.  `network` implements it over libp2p and joins the parts: `dialer` and
`inbound` make connections, `requests`, `gossip` and `bulk` use them, `reputation` and `rate_limit` bound what peers may
cost.  `nat` reaches peers behind home routers.  `simulated` implements the interface under virtual time.  Read `interface`
first.
"""
