"""Synchronisation with other peers: branches of the chain, results, checkpoints and the files of a run.

`following` takes over records of others, `fork_choice` chooses between branches, `catch_up` applies results or loads a
checkpoint, and `supplies` fetches them.  Read `following` first.
"""
