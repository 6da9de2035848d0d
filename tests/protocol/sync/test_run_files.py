"""The files of a run: fetched from whoever has them, and said to be missing where nobody gives them."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import trio
import trio.testing

from protocol.blobs.blob import Blob, ChunkSet, LeavesRequest, chunks_in
from protocol.blobs.fetcher import LEAVES_S
from protocol.blobs.reliability import Reliability
from protocol.blobs.store import BlobStore, leaves_of
from protocol.disk import Disk, StoreFull
from protocol.events.events import Event, Notice
from protocol.run.sections import FILE_CHUNK_BYTES, FileSection
from protocol.sync.fetchers import PATIENCE_S, SMALL_BYTES, RunFiles, file_section, keep_file
from protocol.transport.interface import NetworkError
from protocol.wire.identity import PeerId
from protocol.wire.questions import LeavesReply
from tests.protocol.peers import ANN, BOB

DATA = bytes(FILE_CHUNK_BYTES) + b"the rest"
SECTION = file_section(DATA)


class Peers:
    """A session whose peers answer for leaves as `answer` says, and a swarm that brings the chunks it is told to."""

    def __init__(
        self, folder: Path, peers: tuple[PeerId, ...], answer: Callable[[PeerId], Any], disk: Disk | None = None
    ) -> None:
        self.peers, self.answer = peers, answer
        self.fetched: list[int] = []
        self.asked: list[PeerId] = []
        self.events: list[Event] = []
        self.states: list[str] = []
        self.brings = [0, 1]
        network = SimpleNamespace(connected=lambda: self.peers, request=self._request)
        session: Any = SimpleNamespace(me=ANN.peer_id, network=network, emit=self.events.append)
        manifest: Any = SimpleNamespace(files={"tasks.jsonl": SECTION}, base=None)
        known = Reliability()
        swarm: Any = SimpleNamespace(fetch=self._fetch, add_sources=lambda name, sources: None, reliability=known)
        self.files = RunFiles(session, manifest, BlobStore(disk or Disk(), folder / "files"), swarm, self._offload)

    async def _offload(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    async def _request(self, peer: PeerId, kind: str, question: bytes, *, timeout_s: float) -> bytes:
        assert (kind, question) == ("leaves", LeavesRequest(blob=SECTION.name).encode())
        self.asked.append(peer)
        await trio.sleep(timeout_s)
        return bytes(self.answer(peer))

    async def _fetch(
        self, blob: Blob, into: memoryview, *_: Any, here: ChunkSet, on_chunk: Callable[[], None], mirrors: None
    ) -> bool:
        for chunk in [chunk for chunk in self.brings if not here >> chunk & 1]:
            into[blob.span(chunk)] = DATA[blob.span(chunk)]
            self.fetched.append(chunk)
            on_chunk()
        return not {0, 1} - {*chunks_in(here), *self.brings}

    def run(self, for_s: float) -> bool:
        """Whether the files are here after so many seconds."""

        async def main() -> None:
            with trio.move_on_after(for_s):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.files.run)
                    await self.files.until_here(self.states.append)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        return self.files.are_here


def silent(peer: PeerId) -> bytes:
    raise NetworkError("no answer")


def right(peer: PeerId) -> bytes:
    return LeavesReply(leaves=[*map(bytes, leaves_of(DATA, FILE_CHUNK_BYTES))]).encode()


def test_a_file_that_nobody_gives_is_said_to_be_missing_once_with_the_remedy(tmp_path: Path) -> None:
    peers = Peers(tmp_path, (BOB.peer_id,), silent)
    assert not peers.run(3 * PATIENCE_S)
    [told] = [event for event in peers.events if isinstance(event, Notice) and event.level == "warning"]
    assert "tasks.jsonl" in told.text and "ask the organiser" in told.text
    assert "tasks.jsonl" in peers.states[2] and "nobody" not in peers.states[2]
    assert peers.states[-1].startswith("no peer has sent the run's file tasks.jsonl for 8")


def test_how_far_a_file_is_can_be_read_and_what_came_is_no_silence(tmp_path: Path) -> None:
    peers = Peers(tmp_path, (BOB.peer_id,), right)
    peers.brings = [0]
    assert not peers.run(PATIENCE_S)
    assert peers.states[-1] == "fetching the run's file tasks.jsonl: 1 of 2 parts are here"
    peers.brings = [1]
    assert peers.run(60.0)
    assert not [event for event in peers.events if isinstance(event, Notice) and event.level == "warning"]


def test_silent_peers_keep_a_file_from_us_for_a_bounded_time_only(tmp_path: Path) -> None:
    crowd = tuple(PeerId(f"silent {number}") for number in range(50))
    peers = Peers(tmp_path, (*crowd, BOB.peer_id), lambda peer: right(peer) if peer == BOB.peer_id else silent(peer))
    assert peers.run(40 * LEAVES_S)
    assert len({*peers.asked[:12]}) > 6, "each time others are asked first"


BEGUN = """
import os, signal, sys
from pathlib import Path
from protocol.blobs.store import BlobStore
from protocol.disk import Disk, StoreFull
from protocol.run.sections import FILE_CHUNK_BYTES, FileSection
files = BlobStore(Disk(), Path(sys.argv[1]))
files.load()
part = files.begin(bytes.fromhex(sys.argv[2]), int(sys.argv[3]))
part.view[FILE_CHUNK_BYTES:] = b"the rest"
part.view[: FILE_CHUNK_BYTES // 2] = b"x" * (FILE_CHUNK_BYTES // 2)  # of a chunk that was being written
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_peer_that_was_killed_fetches_only_the_chunks_that_it_lacks(tmp_path: Path) -> None:
    words = [str(tmp_path / "files"), SECTION.root, str(SECTION.size)]
    killed = subprocess.run([sys.executable, "-c", BEGUN, *words])
    assert killed.returncode == -signal.SIGKILL
    before = BlobStore(Disk(), tmp_path / "files")
    before.load()
    assert before.sizes() == {} and before.parts() == {SECTION.name: SECTION.size}, "nothing half-written is whole"
    peers = Peers(tmp_path, (BOB.peer_id,), right)
    assert peers.run(60.0) and peers.fetched == [0]
    after = BlobStore(Disk(), tmp_path / "files")
    after.load()
    assert after.path(SECTION.name).read_bytes() == DATA and not after.parts()


class FullDisk(Disk):
    """A disk on which no large file fits."""

    def reserve(self, file: BinaryIO, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_without_room_the_fetch_ends_with_a_sentence_and_is_done_when_there_is_room(tmp_path: Path) -> None:
    """The daemon then stays away (`tests.peer.daemon.test_away`)."""
    with pytest.RaisesGroup(
        pytest.RaisesExc(StoreFull, match="is full: make room there, or choose another --data-dir"), flatten_subgroups=True
    ):
        Peers(tmp_path, (BOB.peer_id,), right, FullDisk()).run(60.0)
    assert [path.suffix for path in (tmp_path / "files").iterdir()] == [".leaves"], "no file that looks like the base"
    peers = Peers(tmp_path, (BOB.peer_id,), right)
    assert peers.run(60.0) and peers.fetched == [0, 1]


def test_small_files_come_before_large_ones_and_can_be_read_meanwhile(tmp_path: Path) -> None:
    peers, seen = Peers(tmp_path, (), silent), list[str]()
    large = FileSection(size=SMALL_BYTES + 1, root="0" * 64)
    manifest: Any = SimpleNamespace(files={"base/model.safetensors": large, "base/config.json": SECTION}, base=None)
    store = BlobStore(Disk(), tmp_path / "files")
    keep_file(store, SECTION, DATA)
    session: Any = SimpleNamespace(me=ANN.peer_id, network=SimpleNamespace(connected=tuple), emit=peers.events.append)
    swarm: Any = SimpleNamespace(reliability=Reliability())
    files = RunFiles(session, manifest, store, swarm, peers._offload)

    async def main() -> None:
        with trio.move_on_after(10.0):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(files.run)
                await files.until_small_here()
                assert not files.are_here
                await files.until_here(seen.append)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert seen[-1] == "fetching the run's file base/model.safetensors from its peers"
