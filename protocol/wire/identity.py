"""The identity of a peer: an Ed25519 key and the libp2p peer ID that carries its public half.

This module is arithmetic only; `peer.keyfile` stores the key on disk and holds its lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NewType

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.wire.canonical import Malformed

PeerId = NewType("PeerId", str)
"""A libp2p peer ID in base58 ("12D3Koo…"): the identity multihash of the protobuf of an Ed25519 public key."""

KEY_BYTES = 32
SIGNATURE_BYTES = 64
REMEMBERED_BYTES = 2048
"""Largest size of signed data for which the result of the check is cached, so the cache holds at most 16 MiB."""
_PREFIX = bytes([0x00, 0x24, 0x08, 0x01, 0x12, 0x20])  # identity multihash of 36 bytes: key type 1, then 32 bytes of key


def peer_id_of(public_key: bytes) -> PeerId:
    """Return the peer ID of a raw Ed25519 public key (32 bytes)."""
    assert len(public_key) == KEY_BYTES
    return PeerId(base58.b58encode(_PREFIX + public_key).decode())


@lru_cache(maxsize=4096)
def public_key_of(peer: PeerId) -> bytes:
    """Return the 32 bytes of public key inside a peer ID; raise `Malformed` for any other string."""
    if not 46 <= len(peer) <= 60:
        raise Malformed("not a peer ID")
    try:
        raw = base58.b58decode(peer)
    except ValueError as error:
        raise Malformed("not a peer ID") from error
    if len(raw) != len(_PREFIX) + KEY_BYTES or not raw.startswith(_PREFIX):
        raise Malformed("not an Ed25519 peer ID")
    if base58.b58encode(raw).decode() != peer:
        raise Malformed("not a peer ID in canonical form")
    return raw[len(_PREFIX) :]


@dataclass(frozen=True)
class Identity:
    """A peer's private key.  `repr` never shows it."""

    _key: Ed25519PrivateKey

    @classmethod
    def generate(cls) -> Identity:
        """Generate a new identity from the system's random numbers."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Return the identity whose raw private key is `seed` (32 bytes)."""
        if len(seed) != KEY_BYTES:
            raise Malformed(f"an identity key has {KEY_BYTES} bytes, not {len(seed)}")
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes from which the identity is made."""
        return self._key.private_bytes_raw()

    @property
    def public_key(self) -> bytes:
        """The 32 bytes of the Ed25519 public key."""
        return self._key.public_key().public_bytes_raw()

    @cached_property
    def peer_id(self) -> PeerId:
        """The libp2p peer ID, which contains the public key."""
        return peer_id_of(self.public_key)

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of `data`."""
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"


def verify(peer: PeerId, signature: bytes, data: bytes) -> bool:
    """Return True if `signature` is `peer`'s over `data`.

    The result is cached for short data, which gossip delivers repeatedly; the limit on the length bounds the cache in bytes.
    """
    return _verify_small(peer, signature, data) if len(data) <= REMEMBERED_BYTES else _verify(peer, signature, data)


@lru_cache(maxsize=8192)
def _verify_small(peer: PeerId, signature: bytes, data: bytes) -> bool:
    return _verify(peer, signature, data)


def _verify(peer: PeerId, signature: bytes, data: bytes) -> bool:
    if len(signature) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key_of(peer)).verify(signature, data)
    except (InvalidSignature, Malformed, ValueError):
        return False
    return True
