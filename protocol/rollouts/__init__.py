"""Batches of rollouts: dealt, generated, verified, decided on, and learned from.

`pool` is a pure state machine of all batches that a peer knows; `rollouts` acts on its effects; `selection` chooses
what a trainer learns from.  Read `pool` first.
"""
