"""Batches of rollouts: dealt, generated, verified, decided on, and learned from.

The package decides which validators judge a batch, whether its verdicts are believed, and which batches a trainer learns
from.  It leaves the bytes of rollouts to the trainer process (`protocol.trainer_link`), chunks to `protocol.blobs`, and
rounds to `protocol.node`.  Read `pool` first, the pure state machine of all batches that a peer knows; `rollouts` acts on
its effects.
"""
