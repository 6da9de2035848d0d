"""Corpora: immutable, content-addressed sets of tokenised documents, of which a peer fetches only the blocks that it reads.

The package decides the format of a corpus and the fetching of its blocks.  It leaves building to `peer.corpora`, reading to
`trainer.data`, and the assignment of rows to peers to `protocol.chain.leases`.  Read `manifest` first.
"""
