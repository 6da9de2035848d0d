"""The files of sets of tasks, when somebody removes or alters them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from protocol.blobs.store import BlobStore
from protocol.disk import Disk
from protocol.tasks.library import SetFiles
from protocol.wire.hashes import Hash
from tests.protocol.peers import ME
from tests.simulation.determinism import inline


def test_a_file_that_somebody_removed_or_altered_is_not_here_any_more(tmp_path: Path) -> None:
    others: Any = SimpleNamespace(me=ME.peer_id, originate=lambda root, count: None)

    async def main() -> None:
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

    trio.run(main)


def test_a_set_that_was_begun_and_is_not_needed_any_more_is_removed(tmp_path: Path) -> None:
    others: Any = SimpleNamespace(me=ME.peer_id, end_origin=lambda root: None)

    async def main() -> None:
        store = BlobStore(Disk(durable=False), tmp_path / "tasks")
        sets = SetFiles(others, others, store, inline, others)
        await sets.load()
        kept, abandoned = Hash(bytes(32)), Hash(b"\x01" * 32)
        for root in (kept, abandoned):
            store.end(store.begin(root, 100))
        await sets.tidy([kept])
        assert [path.name for path in sets.folder.iterdir()] == [f"{kept.hex()}.part"]

    trio.run(main)
