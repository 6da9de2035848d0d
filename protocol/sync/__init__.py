"""Synchronisation with other peers: branches of the chain, and the files that a peer lacks.

The package decides which claims to be ahead it believes, which branch is better, and which files it fetches to reach the
branch's state.  `chain` checks records, and `blobs` fetches chunks.  `following` adopts records of other peers,
`remote_chains` reads and verifies them, `fork_choice` chooses between branches, `fetchers` fetches results, checkpoints and
the run's files, and `catch_up` applies results or loads a checkpoint.  Read `following` first.
"""
