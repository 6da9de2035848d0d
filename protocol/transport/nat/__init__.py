"""Ways to peers that cannot be dialled, as they are behind routers that let nobody in.

Two peers that both reach a third one can be joined there: `relay` is the one in between, `circuits` the ends.  Whatever
connects them, `meeting` then looks for a socket without anybody in between: each dials the other at all its addresses, and
both dial each other at the same moment, through their routers (`race`); a reachable peer tells them where their router shows
them (`mirror`).  `improving` replaces a relayed connection when that has worked.

Why not the library's circuit relay v2 and hole punching: its relay carries everything twice encrypted over one multiplexed
connection in Python (a fifth of a line of 1 Gbit/s), limits nothing, and reserves nothing by itself; what it connects is a
stream, and pushes need sockets; and it punches from the port that is listened on, at the addresses that the other end
claims, without asking anybody how its router translates them.  The addresses are those of circuit relay v2:
/ip4/192.0.2.1/tcp/4001/p2p/RELAY/p2p-circuit/p2p/PEER.
"""
