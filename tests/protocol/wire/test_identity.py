"""Keys and peer IDs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.canonical import Malformed
from protocol.wire.identity import REMEMBERED_BYTES, Identity, PeerId, _verify_small, peer_id_of, public_key_of, verify

ONE = Identity.from_seed(bytes(32))
TWO = Identity.from_seed(bytes([2]) * 32)


def test_peer_id_is_the_one_that_libp2p_computes() -> None:
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.id import ID

    assert str(ID.from_pubkey(create_new_key_pair(ONE.seed).public_key)) == ONE.peer_id


@given(st.binary(min_size=32, max_size=32))
def test_peer_id_carries_the_key(key: bytes) -> None:
    assert public_key_of(peer_id_of(key)) == key


@pytest.mark.slow
@given(st.text(max_size=70) | st.text("123456789ABCDEFGHJKLMNPQRSTUVWXYZabc", min_size=46, max_size=60))
def test_other_strings_are_no_peer_ids(text: str) -> None:
    with pytest.raises(Malformed):
        public_key_of(PeerId(text))


def test_signature_holds_for_signer_and_data_only() -> None:
    signature = ONE.sign(b"data")
    assert verify(ONE.peer_id, signature, b"data")
    assert not verify(TWO.peer_id, signature, b"data")
    assert not verify(ONE.peer_id, signature, b"other")
    assert not verify(ONE.peer_id, signature[:-1], b"data")
    assert not verify(PeerId("nobody"), signature, b"data")


def test_the_key_is_not_shown() -> None:
    assert repr(ONE) == f"Identity({ONE.peer_id})"


def test_a_seed_of_the_wrong_length_is_malformed() -> None:
    with pytest.raises(Malformed):
        Identity.from_seed(b"short")


def test_only_verdicts_on_short_data_are_remembered() -> None:
    """The data is kept with its verdict: strangers must not fill memory with it."""
    identity = Identity.generate()
    short, long = bytes(REMEMBERED_BYTES), bytes(REMEMBERED_BYTES + 1)
    before = _verify_small.cache_info().misses
    assert verify(identity.peer_id, identity.sign(long), long) and not verify(identity.peer_id, identity.sign(short), long)
    assert _verify_small.cache_info().misses == before
    assert verify(identity.peer_id, identity.sign(short), short)
    assert _verify_small.cache_info().misses == before + 1
