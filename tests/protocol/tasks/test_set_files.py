"""The files of sets of tasks, when somebody removes or alters them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from protocol.blobs.store import BlobStore
from protocol.chain.progress import TasksInForce
from protocol.disk import Disk
from protocol.tasks.commands import TaskSetCommands
from protocol.tasks.library import SetFiles
from protocol.tasks.task_sets import LOOK_S, OWN, TaskSets
from protocol.transport.handlers import Guard
from protocol.wire.hashes import Hash
from tests.protocol.peers import ME
from tests.simulation.determinism import inline


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
