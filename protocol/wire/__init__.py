"""Bytes between peers: canonical encoding, hashes, identity, signed envelopes, message schemas.

`canonical` and `body` say what a message may be, `messages` has the statements of rounds.  Read `envelope` first.
"""
