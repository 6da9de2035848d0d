"""Batches of rollouts: dealt, generated, verified, decided on, and learned from.

The package chooses the validators of a batch, decides if their verdicts are believed, and selects the batches from which a
trainer learns.  It leaves the bytes of rollouts to the trainer process (`protocol.trainer_link`), chunks to
`protocol.blobs`, and rounds to `protocol.node`.  Read `pool` first, the pure state machine of all batches that a peer knows;
`rollouts` performs its effects.
"""
