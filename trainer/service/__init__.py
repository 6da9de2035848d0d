"""Service of the trainer process: obeys the peer process over a socket.

It decides what a command may interrupt, and when evaluations are done beside other work; it leaves all computation to
`trainer.worker` and `trainer.rl`.  Read `service` first.
"""
