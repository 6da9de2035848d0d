"""Service of the trainer process: obeys the peer process over a socket.  Begin with `service`."""
