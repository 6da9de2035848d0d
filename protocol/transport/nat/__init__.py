"""NAT traversal: connections to peers whose routers let no connection in.  Read `traversal` first.

`reachability` finds out if other peers can reach us, by asking them to dial us.  Two peers that both reach a third one can
be connected through it: `relay` has the code of the third peer and of the two ends.  Once the two are connected, `punching`
looks for a socket without a peer in between: each dials all addresses of the other, and both dial each other at the same
moment, through their routers.  A reachable peer tells each of them the address and port at which it sees them.  When a
direct socket is found, `traversal` replaces the relayed connection.

We do not use the library's circuit relay v2 and hole punching.  Its relay carries all data, encrypted twice, over one
multiplexed connection in Python (a fifth of a line of 1 Gbit/s), limits nothing, and makes no reservations by itself.  It
connects streams, but pushes need sockets.  Its hole punching dials from the listening port to the addresses that the other
end claims, without asking another peer how a router translates them.  We do use the addresses of circuit relay v2:
/ip4/192.0.2.1/tcp/4001/p2p/RELAY/p2p-circuit/p2p/PEER.
"""
