"""Fetchers of the files that a peer needs: the run's files, and the results and checkpoints that lead to a chain's state.

Every byte is checked against a root in a certified record or in the manifest.  Fetching touches neither our chain nor our
outer state, so it can run in parallel with a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import trio

from protocol.blobs.blob import Blob, EvenSpans, set_of
from protocol.blobs.fetcher import BlobFetcher, Wanted
from protocol.blobs.mirrors import AddressNetwork, Mirrors, RangeClient
from protocol.blobs.store import BlobStore, leaves_of
from protocol.blobs.swarm import Swarm
from protocol.blobs.transfer import Purpose
from protocol.chain.outer_state import certified_digest, genesis_state
from protocol.chain.records import Chain
from protocol.chain.replica import Replica
from protocol.chain.results import CheckpointName, ResultName
from protocol.events.events import CheckpointWritten, Notice
from protocol.formats.adapter import BASE_PREFIX
from protocol.offload import Offload
from protocol.run.manifest import RunManifest
from protocol.run.sections import FILE_CHUNK_BYTES, FileSection
from protocol.transport.interface import MAX_REQUEST_BYTES, NetworkError, Session
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Commit, Record
from protocol.wire.questions import HaveReply, HaveRequest

# ------------------------------------------------------------------------------------------------------------------------
# The files of a run on this peer's disk: fetched from any peer that has them, checked, and offered to others.
#
#     files/<root>.blob           a file, complete (`protocol.blobs.store`)
#
# The organiser's peer has the files from the beginning.  All other peers fetch them as soon as they meet a peer, before they
# fetch the run's state; a trainer process is started once the files are here.  Small files come first: those of a frozen
# model tell whether a trainer could read its weights, before gigabytes are fetched.


SMALL_BYTES = 2 << 20
"""Largest file that is fetched before all larger ones."""
RETRY_S = 1.0
PATIENCE_S = 300.0
"""Seconds without any chunk of a file after which the file is reported as missing, with the remedy."""
SHOW_S = 1.0


class RunFiles:
    """Fetcher of the run's files.  Call `run` once; all other methods only wait."""

    def __init__(
        self,
        session: Session,
        manifest: RunManifest,
        files: BlobStore,
        swarm: Swarm,
        offload: Offload,
        mirror_networks: Sequence[AddressNetwork] = (),
    ) -> None:
        self._session, self._files, self._swarm, self._offload = session, files, swarm, offload
        self._named, self._random, self._base = manifest.files, Random(session.me), manifest.base
        mirrors = None
        if self._base is not None and self._base.mirrors:
            client = RangeClient(mirror_networks, pay=session.network.receive_elsewhere)
            names = {file.name: file.path for file in self._base.files}
            mirrors = Mirrors([url.rstrip("/") for url in self._base.mirrors], client, session.me, session.emit, names)
        self._fetcher = BlobFetcher(session, swarm, files, offload)
        self._base_fetcher = BlobFetcher(session, swarm, files, offload, mirrors=mirrors)
        self._state, self._moved_at = "reading the run's files from disk", 0.0
        self._here, self._small_here = trio.Event(), trio.Event()
        if not self._named:
            self._here.set()
            self._small_here.set()

    @property
    def are_here(self) -> bool:
        """True if all files are here and checked."""
        return self._here.is_set()

    async def until_here(self, on_wait: Callable[[str], None] = lambda state: None) -> None:
        """Wait until all files are here and checked.

        on_wait: called once a second with a sentence that names the awaited file.
        """
        while not self.are_here:
            on_wait(self._state)
            with trio.move_on_after(SHOW_S):
                await self._here.wait()

    async def until_small_here(self) -> None:
        """Wait until all files of at most `SMALL_BYTES` are here and checked."""
        await self._small_here.wait()

    async def run(self) -> None:
        """Check the files that are here and fetch the rest.  Raises `StoreFailed`."""
        if self._here.is_set():
            return
        await self._offload(self._files.load)
        for number, (called, file) in sorted(enumerate(self._named.items()), key=lambda each: each[1][1].size > SMALL_BYTES):
            if file.size > SMALL_BYTES:
                self._small_here.set()
            self._state = f"fetching the run's file {called} from its peers"
            self._moved_at, is_told = trio.current_time(), False
            while not await self._offload(self._files.is_right, file.name, file.size, FILE_CHUNK_BYTES):
                if not await self._fetch(number, called, file):
                    silent_s = trio.current_time() - self._moved_at
                    if silent_s >= PATIENCE_S:
                        nobody = f"no peer has sent the run's file {called} for {silent_s:.0f} s"
                        self._state = f"{nobody}; {self._remedy(called)}"
                        if not is_told:
                            self._session.emit(Notice("warning", self._state))
                        is_told = True
                    await trio.sleep(RETRY_S)
        self._small_here.set()
        self._here.set()

    def _remedy(self, called: str) -> str:
        if self._base is None or self._base.share or not called.startswith(BASE_PREFIX):
            return "ask the organiser to start its peer"
        return "this run does not pass its model on: download the model into Hugging Face's cache, and start again"

    async def _fetch(self, number: int, called: str, file: FileSection) -> bool:
        fetcher = self._base_fetcher if called.startswith(BASE_PREFIX) else self._fetcher
        sources = sorted(self._session.network.connected())
        self._random.shuffle(sources)

        def came(here: int) -> None:
            self._moved_at = trio.current_time()
            self._state = f"fetching the run's file {called}: {here} of {file.chunks} parts are here"

        spans = EvenSpans(file.size, FILE_CHUNK_BYTES)
        return await fetcher.fetch(Wanted(file.name, file.name, spans, Purpose("file", number)), sources, came)


def keep_file(files: BlobStore, file: FileSection, data: bytes) -> None:
    """Store one of the organiser's files in the folder of the organiser's peer.  Blocking.  Raises `StoreFailed`."""
    files.load()
    if not files.is_right(file.name, file.size, FILE_CHUNK_BYTES):
        files.put(file.name, file.size, [data], leaves_of(data, FILE_CHUNK_BYTES))


def file_section(data: bytes) -> FileSection:
    """Return the manifest's entry for these bytes."""
    return FileSection(size=len(data), root=tree_root(leaves_of(data, FILE_CHUNK_BYTES)).hex())


def paths_of(manifest: RunManifest, files: BlobStore) -> dict[str, Path]:
    """Return the paths that the run's files have once they are here, by name.

    A file of the frozen model may lie elsewhere on this computer.
    """
    return {name: files.path(file.name) for name, file in manifest.files.items()}


# ------------------------------------------------------------------------------------------------------------------------
# Results and checkpoints.


ASK_TIMEOUT_S = 10.0
CHECKPOINT_WORTH_ROUNDS = 8
"""Number of missing rounds beyond which a checkpoint (8 bytes a parameter) is smaller than the results (about 1 byte a
parameter for each round)."""


class StateFetcher:
    """Fetcher from peers into the store of `replica`.  progressed_at: when checked data last arrived, in trio time."""

    def __init__(self, session: Session, replica: Replica, offload: Offload, swarm: Swarm) -> None:
        self._session, self._replica, self._offload, self._swarm = session, replica, offload, swarm
        self.progressed_at = -1e9
        self._results = BlobFetcher(session, swarm, replica.store.results, offload)
        self._checkpoints = BlobFetcher(
            session,
            swarm,
            replica.store.checkpoints,
            offload,
            lambda name, size: session.emit(CheckpointWritten(name.rounds, size)),
        )

    async def bring(self, chain: Chain, present: int | None, sources: Sequence[PeerId]) -> int | None:
        """Fetch the files that lead to the newest available state of `chain`; return its number of rounds.

        present: the number of rounds of `chain` after which we have, or can compute, the state; None if we have no state.
        Returns None if no state of this chain is available at all.
        """
        newer = [rounds for rounds in self._replica.store.checkpoints.of(chain) if present is None or rounds > present]
        reached = newer[-1] if newer else present
        if reached is None or chain.length - reached > CHECKPOINT_WORTH_ROUNDS:
            fetched = await self.fetch_newest_checkpoint(chain, sources, at_least=0 if reached is None else reached + 1)
            reached = fetched if fetched is not None else reached
        while reached is not None and reached < chain.length:
            commit = await self._offload(chain.commit_at, reached)
            here = await self._offload(self._replica.result, commit.record, commit.index)
            if here is not None or await self.fetch_result(commit, sources):
                reached += 1
                continue
            # all peers may have pruned the result; then they keep newer checkpoints
            fetched = await self.fetch_newest_checkpoint(chain, sources, at_least=reached + 1)
            if fetched is None:
                break
            reached = fetched
        return reached

    # -- results ------------------------------------------------------------------------------------------------------

    async def fetch_result(self, commit: Commit, sources: Sequence[PeerId]) -> bool:
        """Fetch the result of a certified record to the disk; return False if no peer has it."""
        if not sources:
            return False
        record, leaves = commit.record, [Hash(entry.hash) for entry in commit.index]
        name, spans = ResultName.of(record), [span.encoded for span in self._replica.layouts.result]
        wanted = Wanted(name, name.root, spans, Purpose("result", record.round), leaves)
        return await self._results.fetch(wanted, sources, self._progress)

    async def fetch_chunks(
        self,
        record: Record,
        index: Sequence[ChunkEntry],
        missing: Sequence[int],
        into: memoryview,
        sources: Sequence[PeerId],
    ) -> bool:
        """Fetch the missing chunks of a record's result into a buffer; return True if all are there and checked."""
        leaves, sizes = tuple(Hash(entry.hash) for entry in index), tuple(span.size for span in self._replica.layouts.result)
        blob, purpose = Blob(Hash(record.result_root), leaves, sizes), Purpose("result", record.round)
        here = blob.all & ~set_of(missing)
        return await self._swarm.fetch(blob, into, sources, purpose, here=here, on_chunk=self._progress)

    def _progress(self, here: int = 0) -> None:
        self.progressed_at = trio.current_time()

    # -- checkpoints --------------------------------------------------------------------------------------------------

    async def fetch_genesis(self, sources: Sequence[PeerId]) -> bool:
        """Fetch the state before the first round, which the manifest names, to the disk; return False if no peer has it."""
        return await self._fetch_checkpoint(self._replica.history, 0, sources)

    def offer_genesis(self) -> None:
        """Originate the state before the first round, so that each piece leaves us once; stop once a record exists."""
        genesis, history = genesis_state(self._replica.manifest), self._replica.history
        if genesis is None:
            return
        if history.length == 0 and 0 in self._replica.store.checkpoints.of(history):
            self._swarm.originate(genesis.digest, genesis.pieces)
        else:
            self._swarm.end_origin(genesis.digest)

    async def fetch_newest_checkpoint(self, chain: Chain, sources: Sequence[PeerId], *, at_least: int) -> int | None:
        """Fetch the newest checkpoint of a chain that a source has and a record certifies.

        Returns the number of rounds applied in it; None if there is no such checkpoint.
        """
        answers: dict[PeerId, HaveReply] = {}

        async def ask(peer: PeerId) -> None:
            with suppress(NetworkError, Malformed):
                question = HaveRequest().encode()
                answer = await self._session.network.request(peer, "have", question, timeout_s=ASK_TIMEOUT_S)
                answers[peer] = decode_body(HaveReply, answer, max_bytes=MAX_REQUEST_BYTES)

        async with trio.open_nursery() as nursery:  # all at once: peers that stay silent must not delay it one by one
            for peer in sources:
                nursery.start_soon(ask, peer)
        holders: dict[int, list[PeerId]] = {}
        for peer in (source for source in sources if source in answers):
            for rounds in answers[peer].checkpoints:
                if at_least <= rounds < chain.length:
                    holders.setdefault(rounds, []).append(peer)
        for rounds in sorted(holders, reverse=True):
            if await self._fetch_checkpoint(chain, rounds, holders[rounds]):
                return rounds
        return None

    async def _fetch_checkpoint(self, chain: Chain, rounds: int, sources: Sequence[PeerId]) -> bool:
        manifest, checkpoints = self._replica.manifest, self._replica.store.checkpoints
        digest = await self._offload(certified_digest, manifest, chain, rounds)
        assert isinstance(digest, bytes), "a record certifies the checkpoint"
        name = CheckpointName(rounds, chain.tip_at(rounds))
        if checkpoints.has(name) and (await self._offload(checkpoints.index, name) or [b""])[0] != digest:
            await self._offload(checkpoints.drop, name)  # our own checkpoint of a wrong state
        spans = EvenSpans(self._replica.state.size_bytes, manifest.checkpoint_chunk_bytes)
        wanted = Wanted(name, Hash(digest), spans, Purpose("checkpoint", rounds))
        return await self._checkpoints.fetch(wanted, sources, self._progress)
