"""Admission proofs: what everybody can check, and for whom they are good; how tokens are used up."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.run.admission import (
    BY_MANIFEST,
    MAX_USES,
    AdmissionProof,
    AdmittedBy,
    Token,
    TokenUses,
    bearer_token,
    bound_token,
    has_expired,
    make_proof,
    needs_proof,
    peek_token,
    read_token,
    verify_admission,
)
from protocol.run.manifest import RunManifest, run_id
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ADMISSION_BYTES, decode_body, seal
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack
from protocol.wire.presence import Role

ORGANISER, KEY, OTHER = (Identity.from_seed(bytes([number]) * 32) for number in range(3))
GUESTS = [Identity.from_seed(bytes([100 + number]) * 32).peer_id for number in range(20)]
GUEST, THIEF = GUESTS[:2]
EXPIRES = 1_000_000


def a_manifest(**fields: object) -> RunManifest:
    return RunManifest.model_validate(
        {"name": "run", "organiser": ORGANISER.peer_id, "founders": "anyone", "total_rounds": 10**6, **fields}
    )


INVITE = a_manifest(admission="invite")
RUN = run_id(INVITE)
BOUND = bound_token(ORGANISER, RUN, GUEST, expires=EXPIRES)
BEARER = bearer_token(ORGANISER, RUN, KEY, expires=EXPIRES, uses=3)


def bound(peer: PeerId = GUEST) -> bytes:
    return make_proof(bound_token(ORGANISER, RUN, peer, expires=EXPIRES), RUN, peer)


def bearer(peer: PeerId = GUEST, key: Identity = KEY, token: bytes = BEARER) -> bytes:
    return make_proof(token, RUN, peer, key)


def refusal(proof: bytes, peer: PeerId = GUEST, round: int | None = None, manifest: RunManifest = INVITE) -> str:
    with pytest.raises(Malformed) as error:
        verify_admission(manifest, RUN, peer, proof, round)
    return str(error.value)


# -- proofs -------------------------------------------------------------------------------------------------------------


def test_a_proof_tells_what_admits_its_peer() -> None:
    token = read_token(BEARER, RUN, ORGANISER.peer_id)
    assert verify_admission(INVITE, RUN, GUEST, bearer()) == AdmittedBy(token.name, Role.TRAINER, EXPIRES, None, 3)
    admitted = verify_admission(INVITE, RUN, GUEST, bound(), 10**6)
    assert (admitted.role, admitted.expires, admitted.uses) == (Role.TRAINER, EXPIRES, 1)
    assert has_expired(admitted, EXPIRES) and not has_expired(admitted, EXPIRES - 1)


def test_the_largest_proof_is_within_the_limit() -> None:
    token = bearer_token(ORGANISER, RUN, KEY, expires=2**53, until_round=2**53, uses=MAX_USES)
    assert len(bearer(token=token)) <= MAX_ADMISSION_BYTES


@pytest.mark.parametrize("shown", [bound(), bearer()], ids=["bound", "bearer"])
def test_a_stolen_proof_is_of_no_use(shown: bytes) -> None:
    verify_admission(INVITE, RUN, GUEST, shown)
    assert refusal(shown, THIEF)


def test_a_token_without_the_right_signature_of_its_key_is_no_proof() -> None:
    another_run = AdmissionProof(token=BEARER, signature=KEY.sign(canonical.encode([ZERO_HASH, GUEST])))
    for shown in (make_proof(BEARER, RUN, GUEST), bearer(key=OTHER), bearer(key=ORGANISER), another_run.encode()):
        assert "key's signature" in refusal(shown)
    assert "signature of a key" in refusal(make_proof(BOUND, RUN, GUEST, KEY))


def test_a_token_admits_until_its_round() -> None:
    for token, key in (
        (bound_token(ORGANISER, RUN, GUEST, expires=EXPIRES, until_round=7), None),
        (bearer_token(ORGANISER, RUN, KEY, expires=EXPIRES, until_round=7), KEY),
    ):
        proof = make_proof(token, RUN, GUEST, key)
        for round in (None, 0, 7):
            verify_admission(INVITE, RUN, GUEST, proof, round)
        assert "until round 7" in refusal(proof, round=8)


def test_a_seeds_token_names_nobody_in_a_record() -> None:
    proof = make_proof(bound_token(ORGANISER, RUN, GUEST, expires=EXPIRES, role=Role.SEED), RUN, GUEST)
    assert "role seed" in refusal(proof, round=1)
    verify_admission(INVITE, RUN, GUEST, proof, role=Role.SEED)


@pytest.mark.parametrize(
    ("token", "part"),
    [
        (bound_token(OTHER, RUN, GUEST, expires=EXPIRES), "did not sign"),
        (bound_token(ORGANISER, ZERO_HASH, GUEST, expires=EXPIRES), "another run"),
        (pack(ORGANISER, RUN, peek_token(bound_token(ORGANISER, ZERO_HASH, GUEST, expires=EXPIRES))).raw, "another run"),
        (seal(ORGANISER, RUN, "goodbye", peek_token(BOUND).encode()).raw, "not a token"),
        (BOUND[:-1] + bytes([BOUND[-1] ^ 1]), ""),
        (b"rubbish", "not a message"),
        (bytes(400), "not a message"),
    ],
    ids=["of another", "envelope of another run", "of another run", "no token", "damaged", "rubbish", "zeros"],
)
def test_other_tokens_are_refused(token: bytes, part: str) -> None:
    assert part in refusal(make_proof(token, RUN, GUEST))


@pytest.mark.parametrize("changes", [{"peer": GUEST}, {"key": None}, {"uses": 0}, {"uses": MAX_USES + 1}, {"uses": True},
                                     {"key": bytes(31)}, {"expires": -1}, {"until_round": -1}, {"role": "king"},
                                     {"peer": GUEST, "key": None}, {"more": 1}])  # fmt: skip
def test_a_signed_token_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    fields = canonical.decode(peek_token(BEARER).encode(), max_bytes=1024)
    token = seal(ORGANISER, RUN, Token.KIND, canonical.encode({**fields, **changes})).raw
    assert refusal(make_proof(token, RUN, GUEST, KEY))


def test_where_no_proof_is_needed_none_may_be_shown() -> None:
    listed = a_manifest(admission="allowlist", allowlist=[GUEST])
    for manifest, peer in ((a_manifest(), GUEST), (listed, GUEST), (INVITE, ORGANISER.peer_id)):
        assert verify_admission(manifest, RUN, peer, b"") is BY_MANIFEST and not needs_proof(manifest, peer)
        assert "none is needed" in refusal(bound(), peer, manifest=manifest)
    assert "list" in refusal(b"", THIEF, manifest=listed) and "list" in refusal(bound(THIEF), THIEF, manifest=listed)
    assert "no admission proof" in refusal(b"") and needs_proof(INVITE, GUEST)


@given(st.binary(max_size=MAX_ADMISSION_BYTES + 10))
def test_random_bytes_are_no_proof(proof: bytes) -> None:
    refusal(proof)


@given(st.sampled_from([bound(), bearer()]), st.data())
def test_a_changed_proof_is_no_proof(proof: bytes, data: st.DataObject) -> None:
    place, bit = data.draw(st.integers(0, len(proof) - 1)), data.draw(st.integers(0, 7))
    refusal(proof[:place] + bytes([proof[place] ^ 1 << bit]) + proof[place + 1 :])


def test_a_proof_has_one_form() -> None:
    shown = decode_body(AdmissionProof, bearer())
    assert shown.encode() == bearer() and "later" in refusal(bearer() + b"\xc0") + "later"
    assert refusal(canonical.encode([shown.token, shown.signature]))


# -- uses ---------------------------------------------------------------------------------------------------------------

NAME = peek_token(BEARER).name


def bearers(peers: Iterable[PeerId]) -> list[tuple[PeerId, bytes]]:
    return [(peer, bearer(peer)) for peer in peers]


def test_the_uses_of_a_bearer_token_end() -> None:
    uses = TokenUses().after(bearers(GUESTS[:2]))
    assert uses.count(NAME) == 2 and uses.may_admit(GUESTS[2], bearer(GUESTS[2]))
    full = uses.after(bearers([GUESTS[2]]))
    assert full.count(NAME) == 3 and not full.may_admit(GUESTS[3], bearer(GUESTS[3]))
    with pytest.raises(Malformed, match="admit no more"):
        full.after(bearers([GUESTS[3]]))
    with pytest.raises(Malformed, match="admit no more"):
        uses.after(bearers(GUESTS[2:4]))
    assert uses.count(NAME) == 2, "a value: what is folded in later changes nothing here"


def test_peers_count_once_and_for_their_first_token() -> None:
    another = bearer_token(ORGANISER, RUN, KEY, expires=EXPIRES, uses=1)
    uses = TokenUses().after([(GUEST, bearer()), (GUEST, bearer(token=another))])
    assert (uses.count(NAME), uses.count(peek_token(another).name)) == (1, 0)
    again = uses.after([(GUEST, bearer()), (GUEST, b""), (GUEST, bearer(token=another))])
    assert again is uses and again.count(NAME) == 1
    full = uses.after(bearers(GUESTS[1:3]))
    assert full.may_admit(GUEST, bearer()) and full.may_admit(GUEST, b""), "it is in"


def test_tokens_are_counted_apart_and_empty_proofs_for_none() -> None:
    uses = TokenUses().after([(GUEST, bound()), (THIEF, b""), *bearers(GUESTS[2:5])])
    assert uses.count(peek_token(BOUND).name) == 1 and uses.count(NAME) == 3 and uses.count(Hash(ZERO_HASH)) == 0
    assert uses.may_admit(THIEF, b"") and uses.may_admit(THIEF, bound(THIEF))


@given(st.lists(st.tuples(st.sampled_from(GUESTS), st.booleans()), max_size=12), st.integers(0, 12))
def test_records_are_folded_alike_in_any_portions(shown: list[tuple[PeerId, bool]], cut: int) -> None:
    token = bearer_token(ORGANISER, RUN, KEY, expires=EXPIRES, uses=20)
    pairs = [(peer, bound(peer) if is_bound else bearer(peer, token=token)) for peer, is_bound in shown]
    name, at_once = peek_token(token).name, TokenUses().after(pairs)
    assert at_once.count(name) == TokenUses().after(pairs[:cut]).after(pairs[cut:]).count(name)


@given(st.binary(max_size=200))
def test_what_is_no_proof_admits_nobody(proof: bytes) -> None:
    assert TokenUses().may_admit(GUEST, proof) is (proof == b"")
