"""Who gets in at the door, and what those who do not are told."""

from __future__ import annotations

import pytest

from protocol.run.admission import (
    AdmittedBy,
    Hello,
    HelloReply,
    admit_at_door,
    answer_hello,
    bearer_token,
    bound_token,
    make_hello,
    make_proof,
    version_problem,
)
from protocol.run.manifest import RunManifest, run_id
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Role

ORGANISER, KEY, OTHER = (Identity.from_seed(bytes([number]) * 32) for number in range(3))
GUEST = Identity.from_seed(bytes([9]) * 32).peer_id
NOW = 1_000_000


def a_manifest(**fields: object) -> RunManifest:
    return RunManifest.model_validate(
        {"name": "run", "organiser": ORGANISER.peer_id, "founders": "anyone", "total_rounds": 10**6, **fields}
    )


INVITE = a_manifest(admission="invite")
LISTED = a_manifest(admission="allowlist", allowlist=[GUEST])
RUN = run_id(INVITE)


def proof(peer: PeerId = GUEST, expires: int = NOW + 60, role: Role = Role.TRAINER, until_round: int | None = None) -> bytes:
    return make_proof(bound_token(ORGANISER, RUN, peer, expires=expires, role=role, until_round=until_round), RUN, GUEST)


BEARER = make_proof(bearer_token(ORGANISER, RUN, KEY, expires=NOW + 60), RUN, GUEST, KEY)
FORGED = make_proof(bound_token(OTHER, RUN, GUEST, expires=NOW + 60), RUN, GUEST)


@pytest.mark.parametrize(
    ("manifest", "peer", "shown"),
    [
        (a_manifest(), OTHER.peer_id, b""),
        (LISTED, GUEST, b""),
        (LISTED, ORGANISER.peer_id, b""),
        (INVITE, ORGANISER.peer_id, b""),
        (INVITE, GUEST, proof()),
        (INVITE, GUEST, BEARER),
    ],
    ids=["open", "listed", "organiser of a list", "organiser", "bound token", "bearer token"],
)
def test_these_come_in(manifest: RunManifest, peer: PeerId, shown: bytes) -> None:
    assert isinstance(admit_at_door(manifest, run_id(manifest), peer, shown, NOW), AdmittedBy)


@pytest.mark.parametrize(
    ("manifest", "peer", "shown", "part"),
    [
        (LISTED, OTHER.peer_id, b"", "listed peers"),
        (INVITE, GUEST, b"", f"your peer ID, {GUEST}"),
        (INVITE, GUEST, b"rubbish", "not good"),
        (INVITE, GUEST, FORGED, "did not sign"),
        (INVITE, GUEST, proof(expires=NOW), "has expired"),
        (INVITE, GUEST, proof(OTHER.peer_id), f"is for {OTHER.peer_id}"),
        (INVITE, OTHER.peer_id, BEARER, "signature for this peer"),
        (INVITE, GUEST, proof(role=Role.SEED), "--role seed"),
        (INVITE, GUEST, proof(until_round=6), "until round 6"),
        (a_manifest(), GUEST, b"x", "where none is needed"),
    ],
    ids=["unlisted", "nothing", "rubbish", "forged", "expired", "for another", "stolen", "role", "too late", "needless"],
)
def test_others_read_why_not(manifest: RunManifest, peer: PeerId, shown: bytes, part: str) -> None:
    reason = admit_at_door(manifest, run_id(manifest), peer, shown, NOW, round=7)
    assert isinstance(reason, str) and part in reason and len(reason) <= 300


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
    assert answer_hello(INVITE, RUN, hello, "1.1", 7.5) == HelloReply(protocol=1, version="1.1", clock=7)
    assert "another run" in str(answer_hello(INVITE, ZERO_HASH, hello, "1.1", 7.5))


def test_versions_that_do_not_meet_are_told_who_must_change() -> None:
    old = Hello(protocol_min=1, protocol_max=1, version="x" * 40, run=RUN, role=Role.TRAINER, admission=b"")
    answer = answer_hello(a_manifest(protocol_min=2, protocol_max=3), RUN, old, "y" * 40, 7.5)
    assert isinstance(answer, str) and "install a newer version" in answer and len(answer) <= 300
    new = old.model_copy(update={"protocol_min": 5, "protocol_max": 6})
    assert "install the swarm's version" in str(answer_hello(a_manifest(), RUN, new, "1", 7.5))


def test_a_run_for_newer_software_is_told_before_joining() -> None:
    assert version_problem(a_manifest()) is None
    assert "newer version" in (version_problem(a_manifest(protocol_min=7, protocol_max=8)) or "")
