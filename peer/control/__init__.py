"""The control socket of a running peer: its client and server, its commands, and the event log that it streams.

Only processes of this computer use the socket, except through `remote.py`, which connects the owner from another computer.
`peer.daemon` implements the effects of the commands.

Read `client.py` first, which has the frames, events and errors for all programs but the daemon; then `server.py`, and
`history.py`, which sums up the records and the event log.
"""
