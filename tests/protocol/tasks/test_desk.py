"""What the organiser admits is what its own peer has, whatever those say that offer it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from protocol.blobs.store import BlobStore
from protocol.chain.progress import TasksInForce
from protocol.disk import Disk
from protocol.tasks.commands import TaskSetCommands
from protocol.tasks.library import SetFiles
from protocol.tasks.task_sets import Offers, SignedOffer
from protocol.wire.rollouts import Amendment, TaskSet
from tests.protocol.peers import ANN, BOB, ME
from tests.simulation.determinism import inline


def admitted(folder: Path, data: bytes, count: int, *said: Mapping[str, Any]) -> Amendment:
    """What Ann's peer, which has these bytes, signs when she admits them.  said: in offers, all but the first of members."""
    swarm: Any = SimpleNamespace(originate=lambda root, chunks: None)
    session: Any = SimpleNamespace(me=ANN.peer_id, seal=lambda body: SimpleNamespace(raw=b"signed"))
    guard: Any = None
    sets: Any = SimpleNamespace(
        offers=Offers(), organiser=ANN.peer_id, running=SimpleNamespace(is_open=True), in_force=TasksInForce(), pending=None
    )
    sets.tidying = trio.Lock()
    sets.files = SetFiles(session, guard, BlobStore(Disk(durable=False), folder), inline, swarm)

    async def taken(*arguments: object) -> None: ...

    sets.keep = sets.say = taken
    sets.ask_for = lambda root: None
    sets.take = lambda body, raw: True

    async def main() -> Amendment:
        await sets.files.load()
        (folder / ".given-1.new").write_bytes(data)
        root, _ = await sets.files.adopt(folder / ".given-1.new")
        for at, each in enumerate(said):
            body = TaskSet(**{"name": "s", "count": count, "size": len(data), "root": root, **each})
            assert sets.offers.hear(SignedOffer(body, [BOB, ME][at].peer_id, b"raw", is_member=at > 0))
        return await TaskSetCommands(session, sets).admit(root.hex()[:12], None, count)

    return trio.run(main)


def test_neither_a_false_size_nor_a_false_number_of_tasks_is_admitted(tmp_path: Path) -> None:
    """A member offers a stranger's set as well, once the organiser's peer has it: nobody else could have it then."""
    amendment = admitted(tmp_path, b"three lines", 3, {}, {"size": 12, "count": 9})
    assert [(each.size, each.count, each.publisher) for each in amendment.sets] == [(11, 3, ME.peer_id)]
