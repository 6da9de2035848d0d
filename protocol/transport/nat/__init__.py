"""Ways to peers that cannot be dialled, as their routers let no connection in.  Read `traversal` first.

`reachability` finds out if others reach us, by asking them to dial us.  Two peers that both reach a third one can be joined
there: `relay` has the peer in between and the two ends.  Once they are connected, `punching` looks for a socket without a
peer in between: each dials the other at all its addresses, and both dial each other at the same moment, through their
routers.  A reachable peer tells them the address and port at which it sees them.  When a socket is found, `traversal`
replaces the relayed connection.

We do not use the library's circuit relay v2 and hole punching.  Its relay carries everything twice encrypted over one
multiplexed connection in Python (a fifth of a line of 1 Gbit/s), limits nothing, and reserves nothing by itself.  It
connects streams, but pushes need sockets.  It punches from the listening port to the addresses that the other end claims,
without asking another peer how a router translates them.  We do use the addresses of circuit relay v2:
/ip4/192.0.2.1/tcp/4001/p2p/RELAY/p2p-circuit/p2p/PEER.
"""
