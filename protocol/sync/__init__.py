"""Synchronisation with other peers: branches of the chain, and the files that a peer lacks.

The package decides whom to believe to be ahead, which branch is better, and what is fetched to reach its state.  It leaves
the checks of records to `chain`, and chunks to `blobs`.  `following` takes over records of others, `remote_chains` reads and
verifies them, `fork_choice` chooses between branches, `supplies` fetches results, checkpoints and the run's files, and
`catch_up` applies results or loads a checkpoint.  Read `following` first.
"""
