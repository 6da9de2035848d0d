"""Bytes between peers: canonical encoding, hashes, identity, signed envelopes, message schemas.

`canonical` and `envelope` define the valid encodings of a message, `messages` has the statements of rounds, `presence` a
peer's statements about itself, `rollouts` the statements of runs with rollouts, and `questions` the unsigned requests and
answers.  The packages that handle a statement define its meaning.  Read `envelope` first.
"""
