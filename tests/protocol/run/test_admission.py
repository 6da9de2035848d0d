"""Who gets in, and what those who do not are told."""

from __future__ import annotations

import pytest

from protocol.run.admission import Hello, HelloReply, admit, answer_hello, make_hello, make_token, version_problem
from protocol.run.manifest import RunManifest, run_id
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Role

ORGANISER = Identity.from_seed(bytes(32))
GUEST = Identity.from_seed(bytes([2]) * 32).peer_id
OTHER = Identity.from_seed(bytes([3]) * 32)
NOW = 1_000_000.0


def a_manifest(**fields: object) -> RunManifest:
    return RunManifest.model_validate({"name": "run", "organiser": ORGANISER.peer_id, "founders": "anyone", **fields})


INVITE = a_manifest(admission="invite")
RUN = run_id(INVITE)


def token(signer: Identity = ORGANISER, run: Hash = RUN, role: Role = Role.TRAINER, left_s: int = 60,
          peer: PeerId | None = None) -> bytes:  # fmt: skip
    return make_token(signer, run, role, int(NOW) + left_s, peer)


def test_an_open_run_admits_everyone() -> None:
    assert admit(a_manifest(), GUEST, None, NOW) is None


def test_an_allowlist_admits_the_listed_and_the_organiser() -> None:
    listed = a_manifest(admission="allowlist", allowlist=[GUEST])
    assert admit(listed, GUEST, None, NOW) is None
    assert admit(listed, ORGANISER.peer_id, None, NOW) is None
    assert "listed peers" in (admit(listed, OTHER.peer_id, None, NOW) or "")


def test_a_token_admits() -> None:
    assert admit(INVITE, GUEST, token(), NOW) is None
    assert admit(INVITE, GUEST, token(peer=GUEST), NOW) is None
    assert admit(INVITE, GUEST, token(role=Role.SEED), NOW, role=Role.SEED) is None
    assert admit(INVITE, GUEST, token(), NOW, role=Role.SEED) is None
    assert admit(INVITE, ORGANISER.peer_id, None, NOW) is None


@pytest.mark.parametrize(
    ("shown", "part"),
    [
        (None, "invited peers"), (b"rubbish", "not good"), (token(OTHER), "did not sign"), (token(left_s=0), "expired"),
        (token(run=ZERO_HASH), "another run"), (token(peer=OTHER.peer_id), "is for 12D3"),
        (token(role=Role.SEED), "--role"),
    ],
)  # fmt: skip
def test_a_bad_token_is_refused_with_a_sentence(shown: bytes | None, part: str) -> None:
    reason = admit(INVITE, GUEST, shown, NOW)
    assert reason is not None and part in reason and len(reason) <= 300


def test_a_member_of_a_record_needs_no_token_and_nobody_else_gains_by_that() -> None:
    expired, strange = token(left_s=0), token(OTHER)
    for shown in (None, expired, strange, b"rubbish", token(peer=OTHER.peer_id)):
        assert admit(INVITE, GUEST, shown, NOW, member=True) is None
        assert admit(INVITE, GUEST, shown, NOW) is not None
    listed = a_manifest(admission="allowlist", allowlist=[GUEST])
    assert "listed peers" in (admit(listed, OTHER.peer_id, None, NOW, member=True) or "")


def test_a_good_greeting_is_answered() -> None:
    hello = make_hello(RUN, Role.TRAINER, token(), "1.0")
    assert answer_hello(INVITE, RUN, GUEST, hello, NOW, "1.1") == HelloReply(protocol=1, version="1.1")
    refused = answer_hello(INVITE, RUN, GUEST, hello.model_copy(update={"token": None}), NOW, "1.1")
    assert isinstance(refused, str) and "invited" in refused
    assert "another run" in str(answer_hello(INVITE, ZERO_HASH, GUEST, hello, NOW, "1.1"))
    expired = hello.model_copy(update={"token": token(left_s=0)})
    assert "expired" in str(answer_hello(INVITE, RUN, GUEST, expired, NOW, "1.1"))
    assert answer_hello(INVITE, RUN, GUEST, expired, NOW, "1.1", member=True) == HelloReply(protocol=1, version="1.1")


def test_versions_that_do_not_meet_are_told_who_must_change() -> None:
    old = Hello(protocol_min=1, protocol_max=1, version="x" * 40, run=RUN, role=Role.TRAINER, token=None)
    answer = answer_hello(a_manifest(protocol_min=2, protocol_max=3), RUN, GUEST, old, NOW, "y" * 40)
    assert isinstance(answer, str) and "install a newer version" in answer and len(answer) <= 300
    new = old.model_copy(update={"protocol_min": 5, "protocol_max": 6})
    assert "install the swarm's version" in str(answer_hello(a_manifest(), RUN, GUEST, new, NOW, "1"))


def test_a_run_for_newer_software_is_told_before_joining() -> None:
    assert version_problem(a_manifest()) is None
    assert "newer version" in (version_problem(a_manifest(protocol_min=7, protocol_max=8)) or "")
