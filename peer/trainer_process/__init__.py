"""The trainer as a child process: started, watched, restarted, and spoken to over a socket pair.

`process.py` implements `protocol.trainer_link`; `log.py` keeps the output of the process in a file of limited size.  The
other end of the socket is `trainer.service`.

Read `process.py` first.
"""
