"""What an invitation names and says: addresses that were reached, the token's role, holder and end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
import trio
from trio.testing import MockClock

from peer.discovery.contacts import FILE_NAME, Contacts, Known, read_contacts
from peer.joining.inviting import (
    NOBODY,
    REMEMBERED,
    anchor_of,
    describe_anchor,
    describe_token,
    find_addresses,
)
from peer.joining.run_source import own_addresses
from peer.paths import run_dir
from protocol.events.status import NodeStatus
from protocol.run.admission import bearer_token, bound_token
from protocol.run.invitation import Invitation
from protocol.transport.network import Libp2pNetwork
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Role

RUN = hash_bytes("manifest", b"run")
ORGANISER = Identity.from_seed(bytes(32))
ME, ONE, TWO, GONE = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (1, 2, 3, 4))
NOW = 1_700_000_000.0
DAY_S = 86_400


def at(peer: PeerId, host: str = "192.0.2.1", port: int = 4001) -> str:
    return f"/ip4/{host}/tcp/{port}/p2p/{peer}"


class Net:
    """A network that was reached, and reaches, as the test says."""

    def __init__(
        self,
        listening: Sequence[str] = (),
        here: Sequence[str] = (),
        there: Sequence[str] = (),
        answering: Iterable[str] = (),
    ) -> None:
        self.listening, self.here, self.there = listening or [at(ME)], list(here), list(there)
        self.answering = set(answering)
        self.dialled: list[str] = []

    def addresses(self) -> Sequence[str]:
        return self.listening

    def reached_here(self, counts: Callable[[PeerId], bool]) -> list[str]:
        return self.here

    def reached_there(self) -> list[str]:
        return self.there

    async def answers(self, address: str) -> bool:
        self.dialled.append(address)
        if "198.51.100" in address:
            await trio.sleep_forever()  # a router that swallows everything
        return address in self.answering


def contacts(folder: Path, net: Net, **swarm: Sequence[str]) -> Contacts:
    names = {"one": ONE, "two": TWO}
    return Contacts(folder, cast(Libp2pNetwork, net), lambda: {names[name]: addresses for name, addresses in swarm.items()})


def test_an_invitation_names_what_was_reached_of_this_peer_and_of_others_that_are_there(tmp_path: Path) -> None:
    net = Net(here=[at(ME, "203.0.113.5"), at(ME, "127.0.0.1")], there=[at(ONE), at(ONE, "10.0.0.1"), at(GONE), at(TWO)])
    known = contacts(tmp_path, net, one=[], two=[]).known()
    assert known.for_invitation() == [at(ME, "203.0.113.5"), at(ONE), at(TWO), at(ONE, "10.0.0.1")]


def test_who_only_reached_us_is_dialled_back_and_a_swallowing_router_holds_nobody_up(tmp_path: Path) -> None:
    net = Net(there=[at(TWO)], answering=[at(ONE), at(GONE)])
    swarm = contacts(tmp_path, net, one=[at(ONE, "198.51.100.1"), at(GONE), at(ONE)], two=[at(TWO, "10.0.0.9")])

    async def main() -> float:
        await swarm.dial_back()
        return trio.current_time()

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) < 10
    assert set(net.dialled) == {at(ONE, "198.51.100.1"), at(ONE)}, "nobody else's address, and nobody who was reached"
    assert swarm.known().there == [at(TWO), at(ONE)]


@pytest.mark.slow
def test_what_was_known_is_kept_for_invitations_without_a_running_peer(tmp_path: Path) -> None:
    folder = run_dir(tmp_path, RUN)
    assert find_addresses(RUN, ME, tmp_path).remark == NOBODY
    folder.mkdir(parents=True)

    async def life(net: Net) -> None:
        with trio.move_on_after(1):
            await contacts(folder, net, one=[]).keep()

    trio.run(life, Net(listening=[at(ME, port=36_000)]))
    unreached = find_addresses(RUN, ME, tmp_path)
    assert unreached.remark == NOBODY and unreached.addresses == [f"{a}/p2p/{ME}" for a in own_addresses(36_000)]
    trio.run(life, Net(listening=[at(ME, port=36_000)], here=[at(ME, "203.0.113.5")], there=[at(ONE)]))
    trio.run(life, Net(listening=[at(ME, port=36_000)]))
    kept = find_addresses(RUN, ME, tmp_path)
    assert kept.remark == REMEMBERED and kept.addresses == [at(ME, "203.0.113.5"), at(ONE)]
    trio.run(life, Net(listening=[at(ME, port=36_001)]))
    assert find_addresses(RUN, ME, tmp_path).addresses == [at(ONE)], "what was reached at another port is not ours now"


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"here": 3}', '{"here": ["/ip4/1.2.3.4", 5, "/ip4/a b/tcp/1/p2p/x"], "there": {"a": 1}}', "[" * 9000],
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    assert read_contacts(tmp_path) == Known()


def test_this_computers_addresses_are_those_that_a_peer_listens_on(monkeypatch: pytest.MonkeyPatch) -> None:
    links = {
        "br-0123456789ab": [(socket.AF_INET, "172.18.0.1")],
        "docker0": [(socket.AF_INET, "172.17.0.1")],
        "eth0": [(socket.AF_INET, "192.168.7.2"), (socket.AF_INET6, "fd00::2")],
        "tun0": [(socket.AF_INET, "10.8.0.2")],
    }
    found = {name: [SimpleNamespace(family=kind, address=ip) for kind, ip in each] for name, each in links.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: dict.fromkeys(found, SimpleNamespace(isup=True)))
    assert own_addresses(4001) == ["/ip4/192.168.7.2/tcp/4001", "/ip4/10.8.0.2/tcp/4001"]


def said(token: bytes | None) -> str:
    invitation = Invitation(run=RUN, organiser=ORGANISER.peer_id, addresses=[at(ME)], anchor=None, token=token, secret=None)
    return "\n".join(describe_token(invitation, NOW))


def test_an_invitation_tells_to_which_history_it_is() -> None:
    words = ("name", "run_name", "role", "phase", "why_idle", "why_detail", "version")
    status = NodeStatus(peer=ME, run=RUN.hex(), **dict.fromkeys(words, ""))  # type: ignore[arg-type]
    assert anchor_of(status) is None, "no record is final yet"
    anchor = anchor_of(replace(status, final_rounds=7, final_tip="ab" * 32))
    named = Invitation(run=RUN, organiser=ORGANISER.peer_id, addresses=[at(ME)], anchor=anchor, token=None, secret=None)
    assert describe_anchor(named) == "to the chain whose tip after 7 rounds is abababababababab"
    assert "the chain of its first peers" in describe_anchor(named.model_copy(update={"anchor": None}))


def test_an_invitation_tells_its_role_its_holder_and_its_end() -> None:
    bearer = said(bearer_token(ORGANISER, RUN, ORGANISER, expires=int(NOW) + 6 * DAY_S, uses=5, until_round=70))
    assert "role trainer" in bearer and "up to 5 peers" in bearer and "become a member by round 70" in bearer
    assert "until 2023-11-20 22:13:20 UTC (in 6 days)" in bearer
    bound = said(bound_token(ORGANISER, RUN, ONE, role=Role.SEED, expires=int(NOW) - 3 * DAY_S))
    assert "role seed" in bound and f"for {ONE} alone" in bound and "round" not in bound
    assert "expired at 2023-11-11 22:13:20 UTC (3 days ago)" in bound
    assert said(None) == "without a token"
    assert "invalid token" in said(bound_token(Identity.from_seed(bytes([9]) * 32), RUN, ONE, expires=1))
    assert "9999-12-31" in said(bound_token(ORGANISER, RUN, ONE, expires=2**53))
