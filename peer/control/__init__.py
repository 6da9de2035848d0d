"""The control socket of a running peer: its client and server, its commands, and the event log that it streams.

Everything here is between this computer's processes, except for `remote.py`, which carries the socket to the owner
elsewhere.  What a command does to the peer is decided in `peer.daemon`.

Read `client.py` first: frames, events and errors, as everybody but the daemon sees them; then `server.py` and
`requests.py`.
"""
