"""Bytes between peers: canonical encoding, hashes, identity, signed envelopes, message schemas.

`canonical` and `envelope` say which bytes a message may be, `messages` has the statements of rounds, `presence` a peer's
statements about itself, `rollouts` those of runs with rollouts, and `questions` the unsigned requests and answers.  What a
statement means is left to the packages that handle it.  Read `envelope` first.
"""
