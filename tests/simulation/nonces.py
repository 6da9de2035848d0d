"""Ed25519 signatures under a nonce of one's choice: two valid signatures of one key over the same bytes.

Slow, straight from RFC 8032; for lies only.
"""

from __future__ import annotations

import hashlib

from protocol.wire.envelope import Body, Envelope, _signed_bytes, rebuild
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
Point = tuple[int, int]


def _x_of(y: int) -> int:
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P)
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    return P - x if x % 2 else x


BASE: Point = (_x_of(4 * pow(5, P - 2, P) % P), 4 * pow(5, P - 2, P) % P)


def _add(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    k = D * x1 * x2 * y1 * y2
    return (
        (x1 * y2 + x2 * y1) * pow(1 + k, P - 2, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - k, P - 2, P) % P,
    )


def _times(point: Point, factor: int) -> Point:
    result: Point = (0, 1)
    while factor:
        if factor & 1:
            result = _add(result, point)
        point, factor = _add(point, point), factor >> 1
    return result


def _encoded(point: Point) -> bytes:
    return (point[1] | ((point[0] & 1) << 255)).to_bytes(32, "little")


def sign_with_nonce(seed: bytes, message: bytes, nonce: int) -> bytes:
    """A valid signature of the key of this seed."""
    secret = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    public, commitment = _encoded(_times(BASE, secret)), _encoded(_times(BASE, nonce))
    challenge = int.from_bytes(hashlib.sha512(commitment + public + message).digest(), "little") % ORDER
    return commitment + ((nonce + challenge * secret) % ORDER).to_bytes(32, "little")


def sealed_with_nonce(identity: Identity, run: Hash, body: Body, nonce: int) -> Envelope:
    """The statement in an envelope with such a signature."""
    raw = body.encode()
    signed = _signed_bytes(run, body.KIND, identity.peer_id, raw)
    return rebuild(run, body.KIND, identity.peer_id, raw, sign_with_nonce(identity.seed, signed, nonce))
