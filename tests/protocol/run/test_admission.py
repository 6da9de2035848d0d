"""Admission: proofs, the uses of a token, and what a guest reads at the door."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from protocol.run.admission import (
    BY_MANIFEST,
    MAX_USES,
    AdmissionProof,
    AdmittedBy,
    Hello,
    HelloReply,
    Token,
    TokenUses,
    admit_at_door,
    answer_hello,
    bearer_token,
    bound_token,
    has_expired,
    make_hello,
    make_proof,
    needs_proof,
    peek_token,
    read_token,
    verify_admission,
    version_problem,
)
from protocol.run.manifest import PROTOCOL_VERSION, RunManifest, run_id
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ADMISSION_BYTES, decode_body, seal
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack
from protocol.wire.presence import Role
from tests.protocol.tables import cases

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


def test_a_token_without_the_right_signature_of_its_key_is_no_proof() -> None:
    another_run = AdmissionProof(token=BEARER, signature=KEY.sign(canonical.encode([ZERO_HASH, GUEST])))
    for shown in (make_proof(BEARER, RUN, GUEST), bearer(key=OTHER), bearer(key=ORGANISER), another_run.encode()):
        assert "key's signature" in refusal(shown)
    assert "signature with a token for one peer" in refusal(make_proof(BOUND, RUN, GUEST, KEY))


def test_a_token_admits_until_its_round() -> None:
    for token, key in (
        (bound_token(ORGANISER, RUN, GUEST, expires=EXPIRES, until_round=7), None),
        (bearer_token(ORGANISER, RUN, KEY, expires=EXPIRES, until_round=7), KEY),
    ):
        proof = make_proof(token, RUN, GUEST, key)
        for round in (None, 0, 7):
            verify_admission(INVITE, RUN, GUEST, proof, round)
        assert "expired after round 7" in refusal(proof, round=8)


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


# -- at the door ----------------------------------------------------------------------------------------------------------

NOW = 1_000_000
LISTED = a_manifest(admission="allowlist", allowlist=[GUEST])


def proof(peer: PeerId = GUEST, expires: int = NOW + 60, role: Role = Role.TRAINER, until_round: int | None = None) -> bytes:
    return make_proof(bound_token(ORGANISER, RUN, peer, expires=expires, role=role, until_round=until_round), RUN, GUEST)


SHOWN = make_proof(bearer_token(ORGANISER, RUN, KEY, expires=NOW + 60), RUN, GUEST, KEY)
FORGED = make_proof(bound_token(OTHER, RUN, GUEST, expires=NOW + 60), RUN, GUEST)


@cases(
    "manifest, peer, shown, why_not",
    {
        "open": (a_manifest(), OTHER.peer_id, b"", None),
        "listed": (LISTED, GUEST, b"", None),
        "organiser of a list": (LISTED, ORGANISER.peer_id, b"", None),
        "organiser": (INVITE, ORGANISER.peer_id, b"", None),
        "bound token": (INVITE, GUEST, proof(), None),
        "bearer token": (INVITE, GUEST, SHOWN, None),
        "unlisted": (LISTED, OTHER.peer_id, b"", "listed peers"),
        "nothing": (INVITE, GUEST, b"", f"your peer ID, {GUEST}"),
        "rubbish": (INVITE, GUEST, b"rubbish", "not valid"),
        "forged": (INVITE, GUEST, FORGED, "did not sign"),
        "expired": (INVITE, GUEST, proof(expires=NOW), "has expired"),
        "for another": (INVITE, GUEST, proof(OTHER.peer_id), f"is for {OTHER.peer_id}"),
        "stolen": (INVITE, OTHER.peer_id, SHOWN, "signature for this peer"),
        "role": (INVITE, GUEST, proof(role=Role.SEED), "--role seed"),
        "too late": (INVITE, GUEST, proof(until_round=6), "expired after round 6"),
        "needless": (a_manifest(), GUEST, b"x", "although none is needed"),
    },
)
def test_guests_come_in_or_read_why_not(manifest: RunManifest, peer: PeerId, shown: bytes, why_not: str | None) -> None:
    answer = admit_at_door(manifest, run_id(manifest), peer, shown, NOW, round=7)
    if why_not is None:
        assert isinstance(answer, AdmittedBy)
    else:
        assert isinstance(answer, str) and why_not in answer and len(answer) <= 300


def test_who_is_too_late_reads_by_which_clock() -> None:
    for now, shown in ((NOW, "1970-01-12 13:46 UTC"), (1e18, "9999-12-31 23:59 UTC")):
        reason = admit_at_door(INVITE, run_id(INVITE), GUEST, proof(expires=NOW), now, round=7)
        assert isinstance(reason, str) and f"computer that checked it shows {shown}: set it if that is wrong" in reason
        assert "good until 1970-01-12 13:46 UTC" in reason and len(reason) <= 300


def test_a_token_is_good_for_a_seed_and_a_seeds_for_nothing_else() -> None:
    for role in Role:
        assert isinstance(admit_at_door(INVITE, RUN, GUEST, proof(role=role), NOW, role=Role.SEED), AdmittedBy)


def test_a_greeting_of_this_run_is_answered() -> None:
    hello = make_hello(RUN, Role.TRAINER, b"", "1.0")
    assert answer_hello(INVITE, RUN, hello, "1.1", 7.5) == HelloReply(protocol=PROTOCOL_VERSION, version="1.1", clock=7)
    assert "another run" in str(answer_hello(INVITE, ZERO_HASH, hello, "1.1", 7.5))


def test_versions_that_do_not_meet_are_told_who_must_change() -> None:
    before = PROTOCOL_VERSION - 1
    old = Hello(protocol_min=before, protocol_max=before, version="x" * 40, run=RUN, role=Role.TRAINER, admission=b"")
    for manifest in (a_manifest(), a_manifest(protocol_max=PROTOCOL_VERSION + 1), a_manifest(protocol_min=1)):
        answer = answer_hello(manifest, RUN, old, "y" * 40, 7.5)
        assert isinstance(answer, str) and "install a newer version" in answer and len(answer) <= 300
    new = old.model_copy(update={"protocol_min": 5, "protocol_max": 6})
    assert "install the swarm's version" in str(answer_hello(a_manifest(), RUN, new, "1", 7.5))


def test_a_run_for_other_software_is_told_before_joining() -> None:
    assert version_problem(a_manifest()) is None
    assert "newer version" in (version_problem(a_manifest(protocol_min=7, protocol_max=8)) or "")
    assert "older version" in (version_problem(a_manifest(protocol_min=1, protocol_max=PROTOCOL_VERSION - 1)) or "")
