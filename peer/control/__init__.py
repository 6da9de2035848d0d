"""The control socket of a running peer: its client and server, the requests it takes, and the event log it streams."""
