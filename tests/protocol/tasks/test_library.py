"""Fetching blobs: whom the library asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from protocol.content.blob import Blob
from protocol.content.download import MOST_SOURCES
from protocol.network.interface import NetworkError
from protocol.state.disk import Disk
from protocol.state.weight_files import WeightFiles, leaves_of
from protocol.tasks.library import Library
from protocol.wire.hashes import tree_root
from protocol.wire.identity import PeerId
from protocol.wire.questions import LeavesReply
from tests.protocol.peers import ANN
from tests.simulation.determinism import inline

CHUNK = 1 << 10
DATA = bytes(CHUNK) + b"the rest"
LEAVES = leaves_of(DATA, CHUNK)
CROWD = [PeerId(f"without {number}") for number in range(2 * MOST_SOURCES)]
OWNER = PeerId("owner")


class Asked:
    """A library among `connected` peers, of whom one has the bytes; `peers` notes who was asked."""

    def __init__(self, folder: Path, connected: list[PeerId]) -> None:
        self.peers: list[PeerId] = []
        network = SimpleNamespace(connected=lambda: connected, request=self._request)
        session: Any = SimpleNamespace(me=ANN.peer_id, network=network, emit=lambda event: None)
        swarm: Any = SimpleNamespace(fetch=self._fetch)
        files = WeightFiles(Disk(durable=False), folder / "blobs")
        files.load()
        self.library = Library(session, files, swarm, inline, "blob", CHUNK)

    async def _request(self, peer: PeerId, kind: str, question: bytes, *, timeout_s: float) -> bytes:
        await trio.lowlevel.checkpoint()
        self.peers.append(peer)
        if peer != OWNER:
            raise NetworkError("no such blob")
        return LeavesReply(leaves=[*map(bytes, LEAVES)]).encode()

    async def _fetch(self, blob: Blob, into: memoryview, *_: Any, **__: Any) -> bool:
        into[:] = DATA
        return True

    def fetch(self, first: list[PeerId], enough: Callable[[], bool]) -> bool:
        """Whether the bytes are here after as many tries as it takes, or as `enough` allows."""

        async def main() -> bool:
            while not (here := await self.library.fetch(tree_root(LEAVES), len(DATA), 0, first, 600.0)) and not enough():
                pass
            return here

        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_crowd_of_peers_that_have_nothing_does_not_hide_the_one_that_has_it(tmp_path: Path) -> None:
    asked = Asked(tmp_path, [*CROWD, OWNER])
    assert asked.fetch([*CROWD, OWNER], lambda: len(asked.peers) > 100 * MOST_SOURCES)


def test_whoever_is_said_to_have_it_is_asked_first(tmp_path: Path) -> None:
    asked = Asked(tmp_path, [*CROWD, OWNER])
    assert asked.fetch([OWNER], lambda: True) and asked.peers == [OWNER]
