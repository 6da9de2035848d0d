"""Trainer as a child process, which is started, watched and restarted, and gets commands over a socket pair.

`process.py` implements `protocol.trainer_link`; `channel.py` communicates with one process, and keeps its output in a file
of limited size.  The other end of the socket is `trainer.service`.

Read `process.py` first.
"""
