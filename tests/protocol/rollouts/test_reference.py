"""The weights that a KL term compares with follow the chain: on every branch, and whatever an own state was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from protocol.blobs.store import BlobStore, leaves_of
from protocol.chain.outer_state import OuterState
from protocol.disk import Disk, StoreFull
from protocol.events.events import Event, Notice
from protocol.rollouts.reference import Reference
from protocol.run.manifest import RunManifest
from protocol.wire.hashes import Hash, hash_bytes, tree_root
from tests.protocol.peers import ANN
from tests.simulation.determinism import inline
from tests.simulation.rollouts import rl_run

pytestmark = pytest.mark.usefixtures("virtual_time")

WARM = 2
MANIFEST = rl_run(kl_weight=0.1, warm_rounds=WARM).manifest
PIECE = MANIFEST.checkpoint_chunk_bytes
NOW = 1.0
"""After this many seconds it has looked."""


class Chain:
    """As much of a history as is asked for; `branch` is in every tip.  weights: what its record of round `WARM` names."""

    def __init__(self, length: int) -> None:
        self.length, self.branch, self.weights = length, "ours", b""

    def tip_at(self, rounds: int) -> Hash:
        return hash_bytes("tip", f"{self.branch} {rounds}".encode())

    @property
    def tip(self) -> Hash:
        return self.tip_at(self.length)

    def commit_at(self, round: int) -> Any:
        assert round == WARM < self.length
        return SimpleNamespace(record=SimpleNamespace(weights=self.weights))


class Others:
    """In place of the library: has the weights in `served`."""

    def __init__(self, files: BlobStore) -> None:
        self._files, self.served, self.asked = files, dict[Hash, bytes](), list[Hash]()
        self.removed = list[Hash]()

    async def obtain(self, root: Hash, size: int, number: int, first: object, within_s: float) -> bool:
        await trio.lowlevel.checkpoint()
        assert (size, number) == (MANIFEST.reference_bytes, WARM)
        self.asked.append(root)
        if root in self.served:
            put(self._files, self.served[root])
        return root in self.served

    async def remove(self, root: Hash) -> bool:
        await trio.lowlevel.checkpoint()
        self._files.remove(root)
        self.removed.append(root)
        return True


def put(files: BlobStore, data: bytes) -> Hash:
    leaves = leaves_of(data, PIECE)
    files.put(tree_root(leaves), len(data), [data], leaves)
    return tree_root(leaves)


class Stage:
    """A peer after `length` rounds, whose state's weights are `own`."""

    def __init__(self, folder: Path, length: int) -> None:
        self.chain, self.said = Chain(length), list[Event]()
        self.files = BlobStore(Disk(durable=False), folder / "reference")
        self.files.load()
        self.others, self.state = Others(self.files), OuterState(MANIFEST)
        self.state.reset()
        self.state.theta[:4] = b"\x00\x00\x80\x3f"
        self.state.rounds = length
        self.own = b"".join(self.state.weights())
        self.keeping: Any = SimpleNamespace(changing=trio.Lock(), mark=SimpleNamespace(rounds=length, digest=b"x"))

    def open(self, manifest: RunManifest = MANIFEST) -> Reference:
        session: Any = SimpleNamespace(me=ANN.peer_id, emit=self.said.append)
        store = SimpleNamespace(reference=self.files)
        replica: Any = SimpleNamespace(manifest=manifest, history=self.chain, state=self.state, store=store)
        swarm: Any = None
        made = Reference(session, replica, self.keeping, swarm, inline, frozenset)
        made._library = self.others  # type: ignore[assignment]
        return made

    async def begin(self, nursery: trio.Nursery, manifest: RunManifest = MANIFEST) -> Reference:
        """Open it, and let it look once."""
        reference = self.open(manifest)
        nursery.start_soon(reference.run)
        await trio.sleep(NOW)
        return reference


def held(reference: Reference) -> bytes | None:
    return reference.path.read_bytes() if reference.path is not None else None


def name_of(data: bytes) -> Hash:
    return tree_root(leaves_of(data, PIECE))


def other_weights(number: int) -> bytes:
    return bytes([number]) * MANIFEST.reference_bytes


async def test_whoever_stands_where_rollouts_begin_writes_them_before_the_record_names_them(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    stage = Stage(tmp_path, WARM)
    reference = stage.open()
    assert reference.path is None and "being written" in reference.missing()
    nursery.start_soon(reference.run)
    await trio.sleep(NOW)
    assert held(reference) == stage.own
    assert reference.missing() == "" and name_of(stage.own).hex() in str(reference.path)

    stage.chain.length, stage.chain.weights = WARM + 1, name_of(stage.own)
    assert reference.path is not None, "at once"
    await trio.sleep(NOW)
    assert held(reference) == stage.own and not stage.others.asked


async def test_a_run_with_initial_weights_has_none_before_they_are_here(nursery: trio.Nursery, tmp_path: Path) -> None:
    stage = Stage(tmp_path, 0)
    changes = {"initial_state": b"initial".hex(), "rl": rl_run(kl_weight=0.1).manifest.rl}
    reference = await stage.begin(nursery, MANIFEST.model_copy(update=changes))
    assert reference.path is None
    stage.keeping.mark = SimpleNamespace(rounds=0, digest=b"initial")
    await trio.sleep(NOW)
    assert held(reference) == stage.own


async def test_each_branch_has_its_own_and_the_one_before_stays(nursery: trio.Nursery, tmp_path: Path) -> None:
    stage = Stage(tmp_path, WARM + 4)
    branches = {f"branch {number}": other_weights(number) for number in range(1, 4)}
    stage.others.served = {name_of(data): data for data in branches.values()}
    reference = stage.open()

    async def go_to(branch: str) -> None:
        stage.chain.branch, stage.chain.weights = branch, name_of(branches[branch])
        assert reference.path is None, "not those of the branch before"
        await trio.sleep(NOW)
        assert held(reference) == branches[branch]

    nursery.start_soon(reference.run)
    await go_to("branch 1")
    await go_to("branch 2")
    asked = len(stage.others.asked)
    await go_to("branch 1")
    assert len(stage.others.asked) == asked, "they were still here"
    await go_to("branch 3")
    assert len(stage.files.sizes()) == 2 and len(stage.others.removed) == 1


async def test_a_full_disk_is_told_once_and_tried_again(nursery: trio.Nursery, tmp_path: Path) -> None:
    stage = Stage(tmp_path, WARM)
    full = StoreFull("the disk is full: make room there")
    begin = stage.files.begin

    def fail(key: Hash, size: int) -> Any:
        raise full

    stage.files.begin = fail  # type: ignore[method-assign]
    reference = stage.open()
    nursery.start_soon(reference.run)
    await trio.sleep(30 * NOW)
    assert [event for event in stage.said if isinstance(event, Notice)] == [Notice("warning", reference.missing())]
    assert "make room there" in reference.missing()
    stage.files.begin = begin  # type: ignore[method-assign]
    await trio.sleep(10 * NOW)
    assert reference.missing() == ""
