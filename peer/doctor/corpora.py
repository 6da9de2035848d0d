"""Checks of the run's corpora: which blocks are here, where the others come from, and where they would be kept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

import trio

from peer.corpora.inputs import HUB
from peer.doctor.checks import Check, CheckResult, at_least, ok
from peer.paths import BLOCKS, CORPORA
from peer.resources.room import LEAST_CACHE_BYTES, DiskRoom, used_bytes
from peer.settings.preferences import Preferences
from protocol.blobs.blob import Blob, BlobReply, BlobRequest, ChunkSet, chunks_in, from_bitmap, set_of
from protocol.blobs.mirrors import Mirrors, RangeClient
from protocol.blobs.store import BlobStore
from protocol.corpora.manifest import SHARDS, Block, Shard, Shards, read_manifest, shards_of
from protocol.corpora.store import CorpusShelf
from protocol.disk import Disk, size_of
from protocol.events.events import Event, Notice
from protocol.formatting import many, size
from protocol.run.manifest import RunManifest
from protocol.run.sections import CORPORA as FILES
from protocol.sync.fetchers import file_section, paths_of
from protocol.transport.interface import Network, NetworkError
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import decode_body
from protocol.wire.identity import PeerId

MIRROR_S = 20.0
PEER_S = 5.0
MOST_ASKED = 8
"""Peers that are asked for a block."""
NEED_CORPUS = "ask the organiser to start a peer that has the corpus"
WITHOUT = "join with --data FOLDER, or name it with `peer config data FOLDER`; with --role seed no data are needed"


@dataclass(frozen=True)
class CorporaHere:
    """Corpora of a run, as far as their descriptions are on this computer.

    missing: a block that is not here; None if all are here.  here_bytes, whole_bytes: size of the blocks that are here, and
    of all blocks.
    """

    shards: Shards
    missing: Block | None
    here_bytes: int
    whole_bytes: int

    @property
    def called(self) -> str:
        """Name of the missing block for people."""
        return self.shards[self.missing.shard].name_of(self.missing.number) if self.missing is not None else ""


def own_data(preferences: Preferences) -> Check:
    """Check that the data exist that this peer would train on, in a run on the members' own data."""
    named = preferences.data
    if named is None:
        return Check("own data", CheckResult.WARN, "none is named here", "a file or a folder", WITHOUT)
    if not named.startswith(HUB) and not Path(named).exists():
        return Check("own data", CheckResult.FAIL, f"{named} does not exist", "a file or a folder", WITHOUT)
    return ok("own data", f"{named}, which stays on this computer")


def find_corpora(manifest: RunManifest, run_folder: Path, preferences: Preferences) -> CorporaHere | None:
    """Look for the run's blocks on this computer; None if the descriptions of its corpora are not here.  Blocking."""
    if not (run_folder / "files").is_dir():
        return None
    named = paths_of(manifest, BlobStore(Disk(), run_folder / "files"))
    try:
        contents = [path.read_bytes() for name, path in named.items() if name.startswith(FILES)]
        shards = shards_of([read_manifest(content) for content in contents])
    except (OSError, Malformed):
        return None
    if [file_section(content) for content in contents] != manifest.data.corpora:
        return None
    linked = run_folder / CORPORA
    links = sorted(linked.iterdir()) if linked.is_dir() else []
    shelves = [CorpusShelf(folder, shards) for folder in (*map(Path, preferences.corpus or ()), *links)]
    missing: Block | None = None
    here_bytes = whole_bytes = 0
    for shard in shards.values():
        here = _cached(run_folder / BLOCKS / shard.root.hex(), shard)
        for shelf in shelves:
            here |= shelf.here(shard.root)
        whole_bytes += shard.spans.size
        here_bytes += sum(shard.block(number).size for number in chunks_in(here))
        absent = (1 << len(shard)) - 1 & ~here
        if absent and missing is None:
            missing = shard.block(next(iter(chunks_in(absent))))
    return CorporaHere(shards, missing, here_bytes, whole_bytes)


def _cached(folder: Path, shard: Shard) -> ChunkSet:
    """Return the blocks of a shard in the cache, which a running peer may be changing."""
    try:
        with os.scandir(folder) as found:
            names = {entry.name for entry in found}
    except OSError:
        return 0  # a corpus may have millions of blocks, and most shards have no folder here
    numbers = [number for number in range(len(shard)) if str(number) in names]
    return set_of([number for number in numbers if size_of(folder / str(number)) == shard.block(number).size])


def blocks_here(found: CorporaHere | None) -> Check:
    """Return the check of the blocks on this computer."""
    if found is None:
        remedy = "nothing to do; a peer fetches them when it joins, and then this check says more"
        return Check("corpora", CheckResult.UNKNOWN, "their descriptions are not here yet", "", remedy)
    return ok(
        "corpora", f"{size(found.here_bytes)} of {size(found.whole_bytes)} are here; the rest is fetched as it is read"
    )


def block_cache(found: CorporaHere, run_folder: Path, room: DiskRoom, preferences: Preferences) -> Check:
    """Check the disk space for cached blocks.  Blocking."""
    blocks = used_bytes(run_folder / BLOCKS)
    wanted = min(preferences.block_cache or LEAST_CACHE_BYTES, found.whole_bytes - found.here_bytes + blocks)
    remedy = (
        "make room, raise max_disk, or lower block_cache: blocks that do not fit are fetched again when they are read again"
    )
    return at_least("block cache", room.left_bytes() + blocks, wanted, size, remedy, CheckResult.WARN)


# ------------------------------------------------------------------------------------------------------------------------
# Sources of a block that is not here.


async def ask_mirrors(
    manifest: RunManifest, found: CorporaHere, me: PeerId, preferences: Preferences, client: RangeClient | None = None
) -> list[Check]:
    """Ask each mirror for the missing block, and check its hash."""
    client = client or RangeClient([ip_network(each) for each in preferences.mirror_networks or ()])
    return [await _ask_mirror(url, found, me, client) for url in manifest.data.mirrors] if found.missing is not None else []


async def _ask_mirror(url: str, found: CorporaHere, me: PeerId, client: RangeClient) -> Check:
    assert found.missing is not None
    told, came = list[str](), False
    shard, number = found.shards[found.missing.shard], found.missing.number

    def note(event: Event) -> None:
        if isinstance(event, Notice):
            told.append(event.text.partition(": it is ")[0])

    async def keep(at: int, data: bytes) -> None:
        nonlocal came
        await trio.lowlevel.checkpoint()
        came = True

    folder = f"{url.rstrip('/')}/{SHARDS}"
    mirror = Mirrors([folder], client, me, note)
    with trio.move_on_after(MIRROR_S):
        leaves = await mirror.read_leaves(shard.root, len(shard))
        if leaves is not None:
            blob = Blob.cut(shard.root, leaves, shard.spans)
            await mirror.read_chunks(folder, blob, range(number, number + 1), keep)
    if came:
        return ok("mirror", f"{url} gives {found.called}")
    value = told[-1] if told else f"{url} does not answer"
    remedy = "peers may have the block; tell the organiser, or allow a private network with --mirror-networks"
    return Check("mirror", CheckResult.WARN, value, f"gives {found.called}", remedy)


async def ask_peers(found: CorporaHere, network: Network) -> Check:
    """Ask the connected peers which of them have the missing block."""
    assert found.missing is not None
    shard, number, having = found.shards[found.missing.shard], found.missing.number, list[PeerId]()
    asked = sorted(network.connected())[:MOST_ASKED]
    question = BlobRequest(blob=shard.root, chunks=b"").encode()

    async def ask(peer: PeerId) -> None:
        try:
            answer = await network.request(peer, "blob", question, timeout_s=PEER_S)
            if from_bitmap(decode_body(BlobReply, answer).chunks, len(shard)) >> number & 1:
                having.append(peer)
        except (NetworkError, Malformed):
            return

    async with trio.open_nursery() as nursery:
        for peer in asked:
            nursery.start_soon(ask, peer)
    value = f"{len(having) or 'none'} of {many(len(asked), 'peer')} can give {found.called}"
    return ok("blocks", value) if having else Check("blocks", CheckResult.WARN, value, "a peer or a mirror", NEED_CORPUS)
