"""The handshake of a run by token, hour by hour, and the bounded places of its guests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from protocol.chain.base import round_settings
from protocol.chain.history import History
from protocol.chain.records import genesis_tip
from protocol.chain.store import Store
from protocol.membership.activity import Activity
from protocol.membership.handshake import COMING_IN_S, MAX_GUESTS, NO_RECORDS, Guests, Handshake
from protocol.run.admission import AdmittedBy, bearer_token, bound_token, make_hello, make_proof
from protocol.run.manifest import Admission, RunManifest, run_id
from protocol.run.settings import NodeSettings
from protocol.transport.interface import Refused
from protocol.wire.hashes import ZERO_HASH, hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Ready
from protocol.wire.presence import Heartbeat, Role
from tests.protocol.council import a_ready
from tests.protocol.peers import a_heartbeat

ORGANISER, KEY = (Identity.from_seed(bytes([number]) * 32) for number in (0, 8))
GUEST, OTHER = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (2, 3))
RUN = RunManifest.model_validate(
    {"name": "run", "organiser": ORGANISER.peer_id, "founders": "anyone", "admission": "invite", "total_rounds": 9}
)
EXPIRES = 1_000_000


class Clock:
    now = float(EXPIRES - 60)


def opened(
    folder: Path, clock: Clock, introduced: frozenset[PeerId] = frozenset(), manifest: RunManifest = RUN
) -> Handshake:
    settings = NodeSettings("me", Role.TRAINER, "1", 1, introduced=introduced, wall_clock=lambda: clock.now)
    session: Any = SimpleNamespace(run=run_id(manifest), network=SimpleNamespace(welcome=lambda peer: None))
    history = History(round_settings(run_id(manifest), manifest), Store(folder))
    return Handshake(session, manifest, settings, history, Activity(lambda event: None))


def proof(peer: PeerId = GUEST, expires: int = EXPIRES, role: Role = Role.TRAINER) -> bytes:
    return make_proof(bound_token(ORGANISER, run_id(RUN), peer, expires=expires, role=role), run_id(RUN), peer)


def bearer(peer: PeerId, uses: int = 2) -> bytes:
    token = bearer_token(ORGANISER, run_id(RUN), KEY, expires=EXPIRES, uses=uses)
    return make_proof(token, run_id(RUN), peer, KEY)


def knock(handshake: Handshake, peer: PeerId, shown: bytes, role: Role = Role.TRAINER) -> None:
    trio.run(handshake.answer_hello, peer, make_hello(run_id(RUN), role, shown, "1"))


def ready(shown: bytes, manifest: RunManifest = RUN) -> Ready:
    return a_ready(round=0, base=genesis_tip(run_id(manifest)), admission=shown)


def test_a_token_opens_the_door_until_it_expires_and_counts_for_a_day_more(tmp_path: Path) -> None:
    clock = Clock()
    handshake = opened(tmp_path, clock)
    assert not handshake.may_speak(GUEST)
    knock(handshake, GUEST, proof())
    clock.now = EXPIRES + 1
    assert handshake.may_speak(GUEST) and handshake.may_contribute(GUEST)
    with pytest.raises(Refused, match="has expired"):
        knock(handshake, OTHER, proof(OTHER))
    clock.now = EXPIRES + COMING_IN_S + 1
    assert not handshake.may_contribute(GUEST)


def test_an_accepted_admission_brings_an_allowance_of_its_own_and_a_refused_one_none(tmp_path: Path) -> None:
    handshake = opened(tmp_path / "invite", Clock())
    knock(handshake, GUEST, proof())
    with pytest.raises(Refused):
        knock(handshake, OTHER, proof())
    assert handshake.has_allowance(GUEST) and not handshake.has_allowance(OTHER)
    anyones = opened(tmp_path / "open", Clock(), manifest=RUN.model_copy(update={"admission": Admission.OPEN}))
    assert anyones.may_speak(GUEST) and not anyones.has_allowance(GUEST)


@pytest.mark.parametrize("shown", [proof(), bearer(GUEST)], ids=["bound", "bearer"])
def test_what_one_peer_has_shown_is_of_no_use_to_another(shown: bytes, tmp_path: Path) -> None:
    handshake = opened(tmp_path, Clock())
    knock(handshake, GUEST, shown)
    with pytest.raises(Refused, match="not valid"):
        knock(handshake, OTHER, shown)
    handshake.meet(OTHER, ready(shown))
    assert not handshake.may_speak(OTHER) and not handshake.may_be_named(OTHER, ready(shown))


def test_a_ready_for_our_tip_brings_the_proof_of_a_peer_that_we_have_not_met(tmp_path: Path) -> None:
    clock = Clock()
    for number, (statement, now, good) in enumerate(
        (
            (ready(proof()), EXPIRES - 1, True),
            (ready(bearer(GUEST)), EXPIRES - 1, True),
            (ready(proof()), EXPIRES + COMING_IN_S - 1, True),
            (ready(proof()), EXPIRES + COMING_IN_S + 1, False),
            (ready(proof()).model_copy(update={"base": ZERO_HASH}), EXPIRES - 1, False),
            (ready(b""), EXPIRES - 1, False),
            (ready(b"rubbish"), EXPIRES - 1, False),
            (ready(proof(OTHER)), EXPIRES - 1, False),
            (ready(proof(role=Role.SEED)), EXPIRES - 1, False),
        )
    ):
        clock.now = now
        handshake = opened(tmp_path / str(number), clock)
        handshake.meet(GUEST, statement)
        assert handshake.may_speak(GUEST) is handshake.may_contribute(GUEST) is good, number
        assert handshake.may_be_named(GUEST, statement) is good


def beat(shown: bytes, role: Role = Role.VALIDATOR, **changes: object) -> Heartbeat:
    return a_heartbeat(**{"tip": genesis_tip(run_id(RUN)), "role": role, "admission": shown, **changes})


def test_a_heartbeat_brings_the_proof_of_a_peer_that_is_in_no_record(tmp_path: Path) -> None:
    clock = Clock()
    for number, (statement, now, good) in enumerate(
        (
            (beat(proof()), EXPIRES - 1, True),
            (beat(bearer(GUEST), Role.ROLLOUT), EXPIRES - 1, True),
            (beat(proof(role=Role.VALIDATOR)), EXPIRES - 1, True),
            (beat(proof(role=Role.SEED), Role.SEED), EXPIRES - 1, True),
            (beat(proof()), EXPIRES + COMING_IN_S - 1, True),
            (beat(proof()), EXPIRES + COMING_IN_S + 1, False),
            (beat(proof(role=Role.SEED)), EXPIRES - 1, False),
            (beat(proof(), tip=ZERO_HASH), EXPIRES - 1, False),
            (beat(b""), EXPIRES - 1, False),
            (beat(b"rubbish"), EXPIRES - 1, False),
            (beat(proof(OTHER)), EXPIRES - 1, False),
        )
    ):
        clock.now = now
        handshake = opened(tmp_path / str(number), clock)
        handshake.meet(GUEST, statement)
        assert handshake.may_speak(GUEST) is good, number


def test_who_came_in_by_a_heartbeat_as_a_seed_is_in_no_record(tmp_path: Path) -> None:
    handshake = opened(tmp_path, Clock())
    handshake.meet(GUEST, beat(proof(role=Role.SEED), Role.SEED))
    assert handshake.may_speak(GUEST) and not handshake.may_contribute(GUEST)
    handshake.meet(GUEST, ready(proof()))
    assert handshake.may_contribute(GUEST), "with another token"


def test_a_ready_with_a_proof_that_others_would_refuse_does_not_count(tmp_path: Path) -> None:
    handshake = opened(tmp_path / "invited", Clock())
    knock(handshake, GUEST, proof())
    for shown in (proof(), bearer(GUEST)):
        assert handshake.may_be_named(GUEST, ready(shown))
    for shown in (b"", b"rubbish", bearer(OTHER), proof(expires=1)):
        assert not handshake.may_be_named(GUEST, ready(shown))
    manifest = RUN.model_copy(update={"admission": Admission.OPEN})
    anybody = opened(tmp_path / "open", Clock(), manifest=manifest)
    assert anybody.may_be_named(GUEST, ready(b"", manifest)) and not anybody.may_be_named(GUEST, ready(b"x", manifest))


def test_who_has_no_record_hears_those_whom_its_invitation_names_and_tells_others_why_not(tmp_path: Path) -> None:
    handshake = opened(tmp_path, Clock(), frozenset({GUEST}))
    assert handshake.may_speak(GUEST) and not handshake.may_speak(OTHER)
    with pytest.raises(Refused) as refusal:
        knock(handshake, OTHER, proof(OTHER, expires=1))
    assert str(refusal.value).endswith(NO_RECORDS) and len(str(refusal.value)) <= 300


def by(token: int, uses: int = 1) -> AdmittedBy:
    return AdmittedBy(hash_bytes("token", bytes([token])), uses=uses)


def named(*numbers: int) -> list[PeerId]:
    return [PeerId(f"peer {number}") for number in numbers]


def test_a_bearer_token_has_as_many_places_as_uses_and_the_longest_known_makes_room() -> None:
    guests = Guests(lambda peer: False)
    one, two, three, four = named(1, 2, 3, 4)
    for peer in (one, two, three):
        assert guests.add(peer, b"", by(1, uses=3))
    assert guests.add(one, b"", by(1, uses=3)) and guests.add(four, b"", by(1, uses=3))
    assert [guests.get(peer) is not None for peer in (one, two, three, four)] == [True, False, True, True]


def test_members_keep_their_places_and_so_a_tokens_uses_end() -> None:
    one, two, three = named(1, 2, 3)
    members = {one}
    guests = Guests(members.__contains__)
    for peer in (one, two, three):
        assert guests.add(peer, b"", by(1, uses=2))
    assert guests.get(one) is not None and guests.get(two) is None
    members.add(three)
    assert not guests.add(two, b"", by(1, uses=2)), "two members came with it"
    assert guests.get(two) is None and guests.add(two, b"", by(2))
    members.add(two)
    assert guests.add(two, b"", by(1, uses=2)), "a member comes in whatever it shows"


def test_a_crowd_with_one_token_pushes_out_nobody_else() -> None:
    guests = Guests(lambda peer: False)
    honest = named(*range(50))
    for number, peer in enumerate(honest):
        assert guests.add(peer, b"", by(number))
    for peer in named(*range(1000, 1000 + 2 * MAX_GUESTS)):
        assert guests.add(peer, b"", by(100, uses=4096))
    assert len(guests) == MAX_GUESTS and all(guests.get(peer) is not None for peer in honest)
