"""Discovery of other peers, and of our own addresses.

On this computer by files (`rendezvous.py`), on the local network by mDNS (`mdns.py`), elsewhere by the addresses of an
invitation and the address book (`search.py`, `contacts.py`); and ports opened in the router (`port_mapping.py`, `upnp.py`).

Answers of the network are read in processes of their own (`mdns_process.py`, `upnp.py`), which may be killed.  Which peers
are dialled and kept is decided in `protocol.transport`.  Read `contacts.py` first.
"""
