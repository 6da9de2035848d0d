"""Fetching of the newest version of the weights through the swarm, with spare bandwidth.

`protocol.versions.making` finds the way with the fewest bytes; `surplus` decides which files are kept.  If a patch does not
lead to the signed weights, it is never used again, and the anchor is used instead.  If a version's own file does not match
the signed statement, the version is refused.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

import trio

from protocol.blobs.blob import EvenSpans, Spans
from protocol.blobs.download import MOST_SOURCES
from protocol.blobs.fetcher import BlobFetcher, Wanted
from protocol.blobs.store import BlobStore
from protocol.blobs.swarm import Swarm
from protocol.blobs.transfer import Purpose
from protocol.disk import StoreFailed
from protocol.events.events import Notice, VersionComplete, VersionRefused, VersionStarted
from protocol.offload import Offload
from protocol.run.settings import WeightSettings
from protocol.transport.interface import Session
from protocol.versions.catalogue import KEPT, Catalogue
from protocol.versions.making import Leg, Made, Route, finish, route
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.rollouts import Version

# ------------------------------------------------------------------------------------------------------------------------
# Choice of the files of weights that stay on the disk.
#
# Pure.  Most wanted is the newest complete version that is here.  Then come the files from which a newcomer can make it: the
# newest anchor and the later patches.  Then come older versions.  A file that does not fit below the cap is removed, unless
# it is in use.


def surplus(
    usable: Mapping[int, Version], sizes: Mapping[Hash, int], used: Collection[Hash], keep: int, cap_bytes: int
) -> list[Hash]:
    """Return the files to remove, the least wanted first.

    usable: versions by number, ascending.  sizes: sizes of the files that are here, by root.  keep: number of versions to
    keep whole.
    """
    kept: dict[Hash, None] = {}
    left = cap_bytes - sum(sizes[root] for root in used if root in sizes)
    for root in _by_want(usable, sizes, keep):
        size = 0 if root in used else sizes[root]
        if not kept or size <= left:
            kept[root] = None
            left -= size
    order = [*_by_want(usable, sizes, len(usable))]
    gone = [root for root in sizes if root not in kept and root not in used]
    return sorted(gone, key=lambda root: order.index(root) if root in order else len(order), reverse=True)


def _by_want(usable: Mapping[int, Version], sizes: Mapping[Hash, int], keep: int) -> dict[Hash, None]:
    """Return the wanted files that are here, the most wanted first."""
    newest_first = [*usable.values()][::-1]
    whole = [Hash(version.weights.root) for version in newest_first if version.weights.root in sizes]
    wanted = dict.fromkeys(whole[:1])
    since: list[Hash] = []
    for version in newest_first:
        if version.anchor:
            wanted[Hash(version.weights.root)] = None
        if version.patch is not None:
            since.append(Hash(version.patch.blob.root))
        if version.anchor and version.weights.root in sizes:
            break
    wanted |= dict.fromkeys([*reversed(since), *whole[: max(keep, 1)]])
    return {root: None for root in wanted if root in sizes}


# ------------------------------------------------------------------------------------------------------------------------


CHECK_S = 10.0
"""Most seconds until a damaged file is fetched again."""
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 60.0
DISK_RETRY_S = 60.0
DONORS = 2
"""Most older versions from which equal chunks are copied."""
MOST_TELLERS = 8


class Follower:
    """Follower of the newest version at one node; `run` it.

    complete: the number of the newest version that is here, 0 for none.  changing: held while files come and go.
    """

    def __init__(
        self,
        session: Session,
        catalogue: Catalogue,
        files: BlobStore,
        swarm: Swarm,
        offload: Offload,
        settings: WeightSettings,
    ) -> None:
        self._session, self._catalogue, self._files = session, catalogue, files
        self._swarm, self._offload, self._settings = swarm, offload, settings
        self._fetcher = BlobFetcher(session, swarm, files, offload)
        self._random = random.Random(session.me)
        self._refused: dict[int, str] = {}
        self._unfit: set[int] = set()
        """Versions that were refused because their files do not fit below the cap."""
        self._useless: dict[Hash, int] = {}
        """Patches that do not lead to the signed weights, each with its version."""
        self._tellers: dict[int, list[PeerId]] = {}
        self._news = trio.Event()
        self._retry_s = FIRST_RETRY_S
        self._kept_changes = 0
        """Number of the catalogue's changes that are on the disk."""
        self.changing = trio.Lock()
        self.complete = 0

    # -- news ---------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look for work again, because there is news."""
        self._retry_s = FIRST_RETRY_S
        self._news.set()

    def limit(self, settings: WeightSettings) -> None:
        """Apply new settings for the files on disk."""
        self._settings = settings
        for number in self._unfit:
            self._refused.pop(number, None)
        self._unfit.clear()
        self.wake()

    def told_by(self, version: Version, peer: PeerId) -> None:
        """Note that a peer knows this version, and so may have its files."""
        tellers = self._tellers.setdefault(version.version, [])
        if peer not in tellers and len(tellers) < MOST_TELLERS:
            tellers.append(peer)
            self._news.set()  # a source, perhaps the first one
        self._tellers = {number: self._tellers[number] for number in self._tellers if self._is_remembered(number)}
        for blob in version.blobs:
            self._swarm.add_sources(Hash(blob.root), [peer])

    def _is_remembered(self, number: int) -> bool:
        return number > self._catalogue.highest - KEPT

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def refused(self) -> Mapping[int, str]:
        """Versions that are not used, each with the reason."""
        return self._refused

    def usable(self) -> dict[int, Version]:
        """Return the versions that are neither void nor refused, by number, ascending."""
        return {number: body for number, body in self._catalogue.versions().items() if number not in self._refused}

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            self._news = trio.Event()
            try:
                pause_s = await self._step()
            except StoreFailed as error:
                self._session.emit(Notice("warning", f"weights are not kept: {error}"))
                pause_s = DISK_RETRY_S
            with trio.move_on_after(pause_s):
                await self._news.wait()

    async def _step(self) -> float:
        """Do the most urgent piece of work; return the seconds until the next step, if no news comes."""
        await self._keep_statements()
        await self._offload(self._files.check)
        wanted = self._next()
        if self.complete not in self.usable():
            self.complete = 0  # it became void
        if wanted is not None and (wanted[1].legs or wanted[0] != self.complete):
            if await self._take(*wanted):
                self._retry_s = FIRST_RETRY_S
                return 0.0
        else:
            damaged = await self._tidy()
            if damaged is None or await self._fetch(damaged):
                return CHECK_S if damaged is None else 0.0
        pause_s, self._retry_s = self._retry_s, min(2 * self._retry_s, LONGEST_RETRY_S)
        return pause_s

    async def _keep_statements(self) -> None:
        """Write the statements to the disk, before acting on them."""
        changes = self._catalogue.changes
        if changes == self._kept_changes:
            return
        known = [(signed.body.version, signed.raw) for signed in self._catalogue.all()]
        await self._offload(self._files.keep_all, known, self._catalogue.highest - KEPT + 1)
        self._refused = {number: why for number, why in self._refused.items() if self._is_remembered(number)}
        self._useless = {root: number for root, number in self._useless.items() if self._is_remembered(number)}
        self._kept_changes = changes

    def _next(self) -> tuple[int, Route] | None:
        """Return the newest version that can be reached, and the route to it."""
        usable, here = self.usable(), self._files.sizes()
        for number in reversed(usable):
            way = route(usable, number, here, self._useless)
            if way is not None:
                return number, way
        return None

    # -- one version --------------------------------------------------------------------------------------------------

    async def _take(self, number: int, way: Route) -> bool:
        """Fetch a version; return True if the version is here, was found void, or a way to it was ruled out."""
        begun, version = trio.current_time(), self._catalogue.versions()[number]
        if way.legs:
            self._session.emit(VersionStarted(number, way.size_bytes, len(way.legs)))
        legs = way.legs or (Leg(version, version.weights, None),)  # a file that is here is read and checked as well
        blobs = [blob for leg in legs for blob in (leg.blob, leg.version.weights, leg.base) if blob is not None]
        with self._files.using(*{Hash(blob.root) for blob in blobs}):
            for leg in legs:
                if leg.version.version not in self.usable():
                    return True  # it became void meanwhile
                if not await self._have_room(leg) or not await self._fetch(leg):
                    return leg.version.version in self._refused
                async with self.changing:
                    made = await self._offload(finish, self._files, leg)
                if made is Made.WRONG:
                    self._useless_is(leg)
                if made is not Made.RIGHT:
                    return made is Made.WRONG
        self.complete = number
        self._session.emit(
            VersionComplete(number, version.weights.root.hex(), version.weights.size, trio.current_time() - begun)
        )
        return True

    def _useless_is(self, leg: Leg) -> None:
        """Rule out this leg's patch, or the whole version, because a signed statement about one of their files is false."""
        number = leg.version.version
        if leg.base is not None and not self._files.has(Hash(leg.version.weights.root)):
            self._useless[Hash(leg.blob.root)] = number
            self._session.emit(VersionRefused(number, "its patch does not lead to the weights that were signed"))
        else:
            self._refuse(number, "its tensors are not those that were signed")

    def _refuse(self, number: int, reason: str) -> None:
        self._refused[number] = reason
        self._session.emit(VersionRefused(number, reason))

    async def _have_room(self, leg: Leg) -> bool:
        """Make room below the cap for the files that a leg adds; refuse its version and return False if they do not fit."""
        adds = {Hash(blob.root): blob.size for blob in (leg.blob, leg.version.weights)}
        async with self.changing:
            here = self._files.sizes()
            needed = sum(size for root, size in adds.items() if root not in here)
            cap = self._cap_bytes()
            gone = surplus(self.usable(), here, self._files.used(), self._settings.keep, cap - needed)
            await self._remove(gone)
            fits = needed + sum(self._files.sizes().values()) <= cap
        if not fits:
            self._unfit.add(leg.version.version)
            self._refuse(leg.version.version, f"its files do not fit into the {cap} bytes that weights may take here")
        return fits

    def _cap_bytes(self) -> int:
        settings = self._settings
        cap = settings.cap_bytes or (settings.keep + 4) * self._catalogue.most_bytes
        return cap if settings.most_bytes is None else min(cap, settings.most_bytes)

    # -- one file -----------------------------------------------------------------------------------------------------

    async def _fetch(self, leg: Leg) -> bool:
        """Fetch the file of a leg to the disk, whole and checked; return False if some chunk cannot be found now."""
        blob, root = leg.blob, Hash(leg.blob.root)
        purpose = Purpose("weights" if blob == leg.version.weights else "patch", leg.version.version)
        wanted = Wanted(root, root, EvenSpans(blob.size, blob.chunk_bytes), purpose, donors=self._donors(leg))
        return await self._fetcher.fetch(wanted, self.sources(leg.version.version))

    def _donors(self, leg: Leg) -> dict[Hash, Spans]:
        """Return versions that are here and may have equal chunks."""
        if leg.blob != leg.version.weights:
            return {}
        here = self._files.sizes()
        whole = [each.weights for each in reversed(self.usable().values()) if each.weights.root in here]
        return {Hash(blob.root): EvenSpans(blob.size, blob.chunk_bytes) for blob in whole[:DONORS]}

    def sources(self, number: int) -> list[PeerId]:
        """Return the peers to ask for a version: first the peers that told us of it, then other peers."""
        connected = [*self._session.network.connected()]
        told = [peer for peer in self._tellers.get(number, []) if peer in connected]
        others = [peer for peer in connected if peer not in told]
        self._random.shuffle(others)
        return [*told, *others][:MOST_SOURCES]

    # -- the disk -----------------------------------------------------------------------------------------------------

    async def _tidy(self) -> Leg | None:
        """Remove files that are no longer wanted; return a leg for a wanted file that was damaged, if there is one."""
        async with self.changing:
            usable, damaged = self.usable(), self._files.damaged()
            begun = [root for root in self._files.parts() if root not in damaged]  # begun, then abandoned
            sizes = {root: size for root, size in (self._files.sizes() | self._files.parts()).items() if root not in begun}
            gone = surplus(usable, sizes, self._files.used(), self._settings.keep, self._cap_bytes())
            await self._remove([*begun, *gone])
            damaged = self._files.damaged()
        for version in usable.values():
            for blob in version.blobs:
                if blob.root in damaged:
                    return Leg(version, blob, None)
        return None

    async def _remove(self, roots: Collection[Hash]) -> None:
        for root in roots:
            self._swarm.end_origin(root)
            await self._offload(self._files.remove, root)
