"""Places at relays among hostile ones: mute, crowding out members, granting and being gone."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from protocol.transport.addresses import END
from protocol.transport.interface import Unreachable
from protocol.transport.nat import relay
from protocol.transport.nat import relay as traversal_circuits
from protocol.transport.nat.reachability import AddressVerdict
from protocol.transport.nat.relay import KEEP_S, LOOK_S, WANTED, Circuits
from protocol.wire.identity import PeerId
from tests.protocol.transport.recorder import RUN

pytestmark = pytest.mark.usefixtures("virtual_time")
ME = PeerId("me")
MEMBERS = [PeerId(f"member {number}") for number in range(3)]
STRANGERS = [PeerId(f"stranger {number}") for number in range(100)]


class Relays:
    """Those that we have dialled; all grant places but those that are `mute` or `refuse`."""

    def __init__(self, patch: pytest.MonkeyPatch, dialled: Sequence[PeerId]) -> None:
        self.ends = dict.fromkeys(dialled, ("192.0.2.1", 4001))
        self.mute, self.refuse, self.asked = set[PeerId](), set[PeerId](), list[tuple[float, PeerId]]()
        host: Any = SimpleNamespace(set_stream_handler=lambda *arguments: None)
        members: Any = SimpleNamespace(has_member=lambda peer: peer in MEMBERS)
        take: Any = None
        self.circuits = Circuits(host, RUN, members, lambda: self.ends, lambda: AddressVerdict.UNREACHABLE, take)
        patch.setattr(traversal_circuits, "ask", self._ask)

    async def _ask(self, host: object, peer: PeerId, *question: object) -> tuple[bytes, None]:
        self.asked.append((trio.current_time(), peer))
        await trio.lowlevel.checkpoint()
        if peer in self.mute:
            await trio.sleep(relay.ANSWER_S)
            raise Unreachable("no answer")
        return relay.ANSWER.pack(peer not in self.refuse, bytes(relay.TOKEN_BYTES), 0, bytes(END.size)), None

    def times(self, peer: PeerId) -> list[float]:
        return [at for at, asked in self.asked if asked == peer]

    @property
    def places(self) -> set[PeerId]:
        """Where others are told that we are reached."""
        return {PeerId(address.split("/")[6]) for address in self.circuits.addresses(ME)}


@asynccontextmanager
async def asking(patch: pytest.MonkeyPatch, dialled: Sequence[PeerId]) -> AsyncIterator[Relays]:
    """Relays of which our peer asks for places."""
    relays = Relays(patch, dialled)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relays.circuits.run)
        yield relays
        nursery.cancel_scope.cancel()


def test_a_slow_relay_does_not_seem_to_be_one_without_a_limit() -> None:
    assert [relay.kb_per_s(rate) for rate in (0, 1, 999, 1000, 1.25e6)] == [0, 1, 1, 1, 1250]


async def test_members_take_over_the_places_that_strangers_gave_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking(monkeypatch, STRANGERS) as relays:
        await trio.sleep(LOOK_S / 2)
        assert len(relays.places) == WANTED and relays.places <= {*STRANGERS}
        relays.ends |= dict.fromkeys(MEMBERS, ("192.0.2.2", 4001))
        await trio.sleep(2 * LOOK_S)
        assert len(relays.places) == WANTED and relays.places <= {*MEMBERS}
        asked = len(relays.asked)
        await trio.sleep(KEEP_S - 3 * LOOK_S)
        assert len(relays.asked) == asked, "there is enough of both"


async def test_a_place_at_a_relay_that_is_not_dialled_any_more_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is still connected, for it has dialled us: others would be told of nothing, and nothing else be looked for."""
    async with asking(monkeypatch, STRANGERS[:WANTED]) as relays:
        await trio.sleep(LOOK_S / 2)
        assert len(relays.places) == WANTED
        relays.ends = dict.fromkeys(STRANGERS[5:9], ("192.0.2.2", 4001))
        await trio.sleep(2 * LOOK_S)
        assert len(relays.places) == WANTED


async def test_a_crowd_that_says_nothing_holds_up_neither_looking_nor_keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    *mute, honest, other = STRANGERS
    async with asking(monkeypatch, [honest, *mute, other]) as relays:
        relays.mute = {*mute}
        await trio.sleep(len(mute) * relay.ANSWER_S / traversal_circuits.AT_ONCE + 2 * LOOK_S)
        assert relays.places == {honest, other}
        relays.ends.pop(other)
        await trio.sleep(4 * KEEP_S)
        kept = relays.times(honest)
        assert max(after - before for before, after in itertools.pairwise(kept)) <= KEEP_S + LOOK_S + relay.ANSWER_S


async def test_a_relay_that_refuses_what_it_granted_is_asked_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    fickle = STRANGERS[0]
    async with asking(monkeypatch, [fickle]) as relays:
        await trio.sleep(LOOK_S / 2)
        relays.refuse = {fickle}
        await trio.sleep(KEEP_S + 600)
        asked = relays.times(fickle)
        assert len(asked) < 20 and not relays.places
        assert min(after - before for before, after in itertools.pairwise(asked)) >= LOOK_S
