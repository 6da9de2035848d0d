"""What the trainer process holds, across its ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from protocol.rollouts.trainer import KeptVersions, TrainerLock
from protocol.wire.hashes import Hash, hash_bytes

TIP: Hash = hash_bytes("tip", b"")


class Link:
    """A process that is started anew while it is being given a version."""

    pid: int | None = None

    async def keep_version(self, version: int, theta: memoryview) -> None:
        self.pid = self.pid or 7


def test_nothing_is_held_while_there_is_no_process() -> None:
    link: Any = Link()
    keeping: Any = SimpleNamespace(changing=trio.Lock(), mark=SimpleNamespace(rounds=0, digest="x"))
    history = SimpleNamespace(length=0, tip_at=lambda rounds: TIP)
    replica: Any = SimpleNamespace(history=history, state=SimpleNamespace(rounds=0, theta=memoryview(b"")))
    kept = KeptVersions(replica, keeping, link, TrainerLock(), 2)
    trio.run(kept.follow)
    link.pid = None  # it ended
    assert kept.tips == {} and kept.newest is None
    trio.run(kept.follow)
    link.pid = 8
    trio.run(kept.follow)
    assert kept.tips == {0: TIP}
