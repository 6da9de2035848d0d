"""Service of the trainer process, which runs the peer process's commands from a socket.

The package decides what a command may interrupt, and when evaluations run between other jobs. It leaves all computation to
`trainer.worker` and `trainer.rl`. Read `service` first.
"""
