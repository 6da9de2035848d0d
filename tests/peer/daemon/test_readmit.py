"""`peer readmit` names one member that this peer has set aside, by its name or the beginning of its ID."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from peer.control.client import ControlError
from peer.daemon.daemon import Daemon
from peer.daemon.requests import Controls
from protocol.events.status import SwarmPeer


def a_peer(peer: str, name: str, set_aside: str = "") -> SwarmPeer:
    return SwarmPeer(
        peer=peer,
        name=name,
        role="trainer",
        phase="computing",
        round=1,
        steps=0,
        tokens_per_s=0.0,
        liveness="alive",
        heard_s=0.0,
        version="0",
        set_aside=set_aside,
    )


SWARM = [a_peer("12Da", "ann"), a_peer("12Dbob", "bob", "why"), a_peer("12Dc", "cid", "why"), a_peer("12Dd", "cid", "why")]


@pytest.mark.parametrize(
    ("wanted", "lifted"), [("bob", "12Dbob"), ("12Dbob", "12Dbob"), ("12Dc", "12Dc"), ("12Db", "12Dbob")]
)
def test_one_member_is_named(wanted: str, lifted: str) -> None:
    assert readmit(wanted) == lifted


@pytest.mark.parametrize("wanted", ["ann", "12D", "cid", "nobody", "", None, 3])
def test_nobody_is_lifted_by_a_name_that_fits_none_or_several(wanted: object) -> None:
    with pytest.raises(ControlError, match="bob, cid, cid"):
        readmit(wanted)


def readmit(wanted: object) -> str:
    lifted: list[str] = []
    node = SimpleNamespace(audits=SimpleNamespace(lift=lifted.append))
    daemon: Any = SimpleNamespace(status=lambda: SimpleNamespace(swarm=SWARM), running_node=lambda: node)
    controls = Controls(cast("Daemon", daemon))
    trio.run(controls.commands()["readmit"], {"peer": wanted})
    assert len(lifted) == 1
    return lifted[0]
