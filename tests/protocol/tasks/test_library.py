"""Files of sets of tasks: fetched among a crowd that says that it has them, removed, altered, and published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.blobs import fetcher as asking
from protocol.blobs.download import MOST_SOURCES
from protocol.blobs.reliability import Reliability
from protocol.blobs.store import BlobStore, leaves_of
from protocol.chain.progress import TasksInForce
from protocol.disk import Disk
from protocol.tasks.commands import TaskSetCommands
from protocol.tasks.library import RETRY_S, BlobKind, Library, SetFiles
from protocol.tasks.task_sets import LOOK_S, OWN, TaskSets
from protocol.transport.handlers import Guard
from protocol.transport.interface import Refused, Unreachable
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.questions import LeavesReply
from tests.protocol.peers import ANN, ME
from tests.simulation.determinism import inline

PIECE = 16
DATA = bytes(range(40))
LEAVES = leaves_of(DATA, PIECE)
ROOT = tree_root(LEAVES)
MUTE = [PeerId(f"a stranger that says nothing {number:03}") for number in range(3 * MOST_SOURCES)]
MEMBER, SEED = PeerId("member"), PeerId("seed")


class Others:
    """The network and the swarm.  has: peers that have the blob; all others of `connected` let who asks wait."""

    def __init__(self, connected: Sequence[PeerId], has: Sequence[PeerId]) -> None:
        self._connected, self._has = connected, has
        self.asked: list[PeerId] = []
        self.reliability = Reliability(lambda peer: peer == MEMBER)

    def connected(self) -> Sequence[PeerId]:
        return self._connected

    async def request(self, peer: PeerId, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        self.asked.append(peer)
        await trio.lowlevel.checkpoint()
        if peer in self._has:
            return LeavesReply(leaves=list(LEAVES)).encode()
        if peer not in MUTE:
            raise Refused("this peer does not have that blob")
        await trio.sleep(timeout_s)
        raise Unreachable("no answer")

    async def fetch(
        self, blob: Any, into: memoryview, sources: Sequence[PeerId], purpose: Any, *, here: int, **_: Any
    ) -> bool:
        await trio.lowlevel.checkpoint()
        if not set(self._has) & set(sources):
            return False
        into[:] = DATA
        return True


def library(folder: Path, others: Any) -> Library:
    files = BlobStore(Disk(durable=False), folder / "files")
    files.load()
    session: Any = SimpleNamespace(me=ANN.peer_id, network=others, emit=lambda event: None)
    return Library(session, files, others, inline, BlobKind("reference", PIECE))


def fetched_in_s(library: Library, first: Sequence[PeerId]) -> float:
    async def main() -> float:
        begun = trio.current_time()
        while not await library.obtain(ROOT, len(DATA), 0, first, float("inf")):
            await trio.sleep(RETRY_S)
        return trio.current_time() - begun

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_member_is_asked_before_a_crowd_that_says_it_has_the_blob(tmp_path: Path) -> None:
    others = Others([*MUTE, MEMBER], [MEMBER])
    assert fetched_in_s(library(tmp_path, others), [*MUTE, MEMBER]) == 0 and others.asked == [MEMBER]


def test_a_stranger_that_has_it_has_its_turn_among_a_crowd_that_says_so_too(tmp_path: Path) -> None:
    others = Others([*MUTE, SEED], [SEED])
    assert fetched_in_s(library(tmp_path, others), [*MUTE, SEED]) < 600


def test_whoever_does_not_answer_costs_a_moment_and_not_its_whole_time(tmp_path: Path) -> None:
    crowd = MUTE[: asking.AT_ONCE - 1]
    others = Others([*crowd, SEED], [SEED])
    assert fetched_in_s(library(tmp_path, others), crowd) <= len(crowd) * asking.SOON_S


async def test_a_file_that_somebody_removed_or_altered_is_not_here_any_more(tmp_path: Path) -> None:
    others: Any = SimpleNamespace(me=ME.peer_id, originate=lambda root, count: None)
    sets = SetFiles(others, others, BlobStore(Disk(durable=False), tmp_path / "tasks"), inline, others)
    await sets.load()
    roots: list[Hash] = []
    for name in ("kept", "removed", "altered"):
        (sets.folder / name).write_bytes(name.encode() * 9)
        roots.append((await sets.adopt(sets.folder / name))[0])
    kept, removed, altered = roots
    sets.path(removed).unlink()
    sets.path(altered).write_bytes(b"nothing")
    assert {*sets.digests} == {*roots}
    await sets.look_again(roots)
    assert {*sets.digests} == {kept}


async def test_a_set_that_was_begun_and_is_not_needed_any_more_is_removed(tmp_path: Path) -> None:
    others: Any = SimpleNamespace(me=ME.peer_id, end_origin=lambda root: None)
    store = BlobStore(Disk(durable=False), tmp_path / "tasks")
    sets = SetFiles(others, others, store, inline, others)
    await sets.load()
    kept, abandoned = Hash(bytes(32)), Hash(b"\x01" * 32)
    for root in (kept, abandoned):
        store.end(store.begin(root, 100))
    await sets.tidy([kept])
    assert [path.name for path in sets.folder.iterdir()] == [f"part-{kept.hex()}.blob"]


@pytest.mark.usefixtures("virtual_time")
async def test_a_set_that_is_being_published_outlives_a_removal_of_what_nobody_needs(tmp_path: Path) -> None:
    """The peer removes sets twice a second, and flushing an offer to a slow disk takes longer."""

    async def nothing(*arguments: object) -> None: ...

    swarm: Any = SimpleNamespace(originate=lambda root, count: None, end_origin=lambda root: None)
    roster = SimpleNamespace(tasks=TasksInForce())
    replica: Any = SimpleNamespace(
        manifest=SimpleNamespace(rl=SimpleNamespace(max_async=0), organiser=ME.peer_id),
        history=SimpleNamespace(roster=roster, roster_at=lambda version: roster, length=0),
        store=SimpleNamespace(tasks=BlobStore(Disk(durable=False), tmp_path / "tasks")),
    )
    session: Any = SimpleNamespace(me=ME.peer_id, seal=lambda body: SimpleNamespace(raw=b"signed"), emit=lambda event: None)
    session.network = SimpleNamespace(publish=nothing)

    async def offload(call: Any, *arguments: Any) -> Any:
        if arguments[:1] == (OWN,):  # the offer is being flushed
            await trio.sleep(3 * LOOK_S)
        return call(*arguments)

    sets = TaskSets(session, Guard(session), replica, offload, swarm)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sets.run)
        await trio.testing.wait_all_tasks_blocked()
        (sets.files.folder / ".given-1.new").write_bytes(b"three lines")
        body = await TaskSetCommands(session, sets).publish(sets.files.folder / ".given-1.new", "s", 3)
        assert Hash(body.root) in sets.files.digests and sets.files.path(Hash(body.root)).exists()
        nursery.cancel_scope.cancel()
