"""Discovery of other peers, and of our own addresses.

Peers are found on this computer by files (`rendezvous.py`), on the local network by mDNS (`mdns.py`), and elsewhere by the
addresses of an invitation and the address book (`search.py`, `contacts.py`).  `port_mapping.py` and `upnp.py` open a port in
the router.

Answers from the network are read in separate processes (`mdns.py`, `upnp.py`), which may be killed.
`protocol.transport` decides which peers are dialled and kept.  Read `contacts.py` first.
"""
