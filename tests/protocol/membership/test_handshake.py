"""The handshake of a run by token, hour by hour."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.membership.handshake import COMING_IN_S, NO_RECORDS, Handshake
from protocol.network.interface import Refused, Unreachable
from protocol.run.admission import make_hello, make_token
from protocol.run.manifest import RunManifest, run_id
from protocol.run.settings import NodeSettings
from protocol.state.history import History
from protocol.state.store import Store
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Role
from protocol.wire.questions import VouchReply, VouchRequest

ORGANISER = Identity.from_seed(bytes(32))
ME, GUEST, OTHER = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (1, 2, 3))
RUN = RunManifest.model_validate(
    {"name": "run", "organiser": ORGANISER.peer_id, "founders": "anyone", "admission": "invite"}
)
EXPIRY = 1_000_000


class Clock:
    now = float(EXPIRY - 60)


class Answering:
    """A network whose only answer is the given one."""

    peer_id = ME

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer

    async def request(self, peer: PeerId, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        assert kind == "vouch"
        return self._answer(data)


def opened(folder: Path, clock: Clock, introduced: frozenset[PeerId] = frozenset()) -> Handshake:
    settings = NodeSettings("me", Role.TRAINER, "1", 1, introduced=introduced, wall_clock=lambda: clock.now)
    return Handshake(RUN, run_id(RUN), settings, History(run_id(RUN), Store(folder)))


def token(expiry: int = EXPIRY, role: Role = Role.TRAINER) -> bytes:
    return make_token(ORGANISER, run_id(RUN), role, expiry)


def knock(handshake: Handshake, peer: PeerId, shown: bytes | None, role: Role = Role.TRAINER) -> None:
    handshake.answer_hello(peer, make_hello(run_id(RUN), role, shown, "1").encode())


def admitted(handshake: Handshake, answer: Callable[[bytes], bytes], *peers: PeerId) -> bool:
    async def ask() -> bool:
        network: Any = Answering(answer)
        return await handshake.all_admitted(network, peers, OTHER)

    return trio.run(ask)


def test_a_token_opens_the_door_until_it_expires_and_counts_for_a_day_more(tmp_path: Path) -> None:
    clock = Clock()
    handshake = opened(tmp_path, clock)
    assert not handshake.may_speak(GUEST)
    knock(handshake, GUEST, token())
    clock.now = EXPIRY + 1
    assert handshake.may_speak(GUEST) and handshake.may_contribute(GUEST)
    with pytest.raises(Refused, match="has expired"):
        knock(handshake, OTHER, token())
    clock.now = EXPIRY + COMING_IN_S + 1
    assert not handshake.may_contribute(GUEST)


def test_a_seed_is_heard_and_in_no_record(tmp_path: Path) -> None:
    handshake = opened(tmp_path, Clock())
    knock(handshake, GUEST, token(role=Role.SEED), Role.SEED)
    assert handshake.may_speak(GUEST) and not handshake.may_contribute(GUEST)


def test_a_voucher_needs_tokens_that_are_good_for_those_it_names(tmp_path: Path) -> None:
    clock = Clock()

    def answers(*tokens: bytes) -> Callable[[bytes], bytes]:
        return lambda data: VouchReply(tokens=list(tokens)).encode()

    def gone(data: bytes) -> bytes:
        raise Unreachable("gone")

    for number, answer in enumerate(
        (
            answers(),
            answers(b""),
            answers(b"rubbish"),
            answers(token(EXPIRY - 2 * 86_400)),
            answers(token(role=Role.SEED)),
            lambda data: b"odd",
            gone,
        )
    ):
        assert not admitted(opened(tmp_path / str(number), clock), answer, GUEST)
    handshake = opened(tmp_path / "good", clock)
    assert admitted(handshake, gone, ME, ORGANISER.peer_id), "nobody is asked about those"
    assert admitted(handshake, answers(token()), GUEST) and handshake.may_speak(GUEST)
    assert not admitted(handshake, answers(token()), *(PeerId(f"peer {number}") for number in range(65)))
    asked = VouchRequest(peers=[GUEST, OTHER]).encode()
    assert handshake.answer_vouch(asked) == VouchReply(tokens=[token(), b""]).encode()
    with pytest.raises(Refused):
        handshake.answer_vouch(b"odd")


def test_who_has_no_record_hears_those_whom_its_invitation_names_and_tells_others_why_not(tmp_path: Path) -> None:
    handshake = opened(tmp_path, Clock(), frozenset({GUEST}))
    assert handshake.may_speak(GUEST) and not handshake.may_speak(OTHER)
    with pytest.raises(Refused) as refusal:
        knock(handshake, OTHER, token(1))
    assert str(refusal.value).endswith(NO_RECORDS) and len(str(refusal.value)) <= 300
