"""A peer's part in the versions of the weights: statements about them, their fetching, and their publication.

No task runs and no message is sent until a version is heard of, published, or found on the disk.  A peer that knows versions
sends the newest statement to each peer that it meets.  If that peer lacks statements on the way to the newest version, it
asks back for the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from protocol.blobs.store import BlobStore
from protocol.blobs.swarm import Swarm
from protocol.chain.replica import Replica
from protocol.disk import StoreFailed
from protocol.events.events import Dropped, VersionPublished, VersionRefused
from protocol.offload import Offload
from protocol.run.settings import WeightSettings
from protocol.transport.handlers import Guard, PeerMoment, Statement, answers, at, hears, is_told
from protocol.transport.interface import MAX_REQUEST_BYTES, Acceptance, NetworkError, Offence, Refused, Session
from protocol.versions.catalogue import Catalogue, Signed, StatementOutcome
from protocol.versions.following import Follower
from protocol.versions.making import BaseVersion, make_version
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import unpack
from protocol.wire.rollouts import MAX_STATEMENT_BYTES, Version, VersionsReply, VersionsRequest

# ------------------------------------------------------------------------------------------------------------------------
# Publication of a version of the weights: its file is stored and compared with the version before; its statement is signed,
# stored, and only then sent.


ANCHOR_EVERY = 10
MOST_ANCHOR_EVERY = 64
"""Most versions from one anchor to the next: half of the remembered versions, so that every peer knows the anchor with which
patches begin."""
ORIGINS = 4
"""Most files that we offer as their origin, so that each chunk leaves us once; older files are offered as usual."""


class CannotPublish(Exception):
    """Refusal to publish a version; the text is one sentence with the remedy."""


class Publisher:
    """Publisher of versions at one node.  chunk_bytes: size of the chunks that files are cut into."""

    def __init__(
        self,
        session: Session,
        catalogue: Catalogue,
        files: BlobStore,
        swarm: Swarm,
        offload: Offload,
        follower: Follower,
        chunk_bytes: int,
    ) -> None:
        self._session, self._catalogue, self._files, self._swarm = session, catalogue, files, swarm
        self._offload, self._follower, self._chunk_bytes = offload, follower, chunk_bytes
        self._publishing = trio.Lock()
        self._origins: deque[Hash] = deque()

    async def publish(self, source: Path, anchor_every: int = ANCHOR_EVERY) -> Signed:
        """Publish the weights in the file `source`, which lies in the folder of weights, as the next version.

        Raises `CannotPublish`.
        """
        if not self._catalogue.may_publish(self._session.me):
            raise CannotPublish(
                "this peer may not publish weights: it is neither the run's organiser nor named as a publisher"
            )
        async with self._publishing, self._follower.changing:
            try:
                body = await self._made(source, anchor_every)
                if self._catalogue.highest >= body.version:
                    raise CannotPublish("another publisher was faster; try again")
                envelope = self._session.seal(body)
                await self._offload(self._files.keep, body.version, envelope.raw)  # or we might sign its number twice
            except Malformed as error:
                raise CannotPublish(f"the file cannot be published: {error}") from error
            except (StoreFailed, OSError) as error:
                raise CannotPublish(f"the version cannot be kept: {error}") from error
            signed = Signed(body, self._session.me, envelope.raw)
            heard = self._catalogue.hear(signed)
            assert heard is StatementOutcome.NEW, heard
            self._offer(body)
        return signed

    async def _made(self, source: Path, anchor_every: int) -> Version:
        catalogue, number = self._catalogue, self._catalogue.highest + 1
        usable = self._follower.usable()
        newest = next(reversed(usable), 0)
        anchors = [each for each, version in usable.items() if version.anchor]
        base = BaseVersion(newest, usable[newest].weights) if newest else None
        is_anchor = not anchors or number - anchors[-1] >= min(anchor_every, MOST_ANCHOR_EVERY)
        made = await self._offload(
            make_version, self._files, source, number, self._chunk_bytes, catalogue.most_bytes, base, is_anchor
        )
        assert isinstance(made, Version)
        return made

    def _offer(self, body: Version) -> None:
        """Offer the files that other peers will fetch as their origin, so that each chunk leaves us once if possible."""
        names = [body.weights] if body.anchor else []
        names += [body.patch.blob] if body.patch is not None else []
        for blob in names:
            self._swarm.originate(Hash(blob.root), blob.count)
            self._origins.append(Hash(blob.root))
        while len(self._origins) > ORIGINS:
            self._swarm.end_origin(self._origins.popleft())


# ------------------------------------------------------------------------------------------------------------------------
# The versions at one node.


ASK_TIMEOUT_S = 10.0
REPEAT_S = 30.0
"""Seconds between a publisher's repetitions of its newest statement: gossip may be lost."""
AGAIN_S = 10.0
"""Seconds to wait after a failure in our own code."""
FIRST_SEEK_S, LONGEST_SEEK_S = 5.0, 320.0
"""Seconds after which one peer is asked for all statements, while a statement on the way to the newest version is missing;
doubled, up to the second value, each time that the answer has nothing new."""


class WeightVersions:
    """Versions of the weights at one node.  swarm: its shelf includes a `VersionShelf` of the catalogue."""

    def __init__(
        self,
        session: Session,
        guard: Guard,
        replica: Replica,
        catalogue: Catalogue,
        offload: Offload,
        swarm: Swarm,
        settings: WeightSettings,
    ) -> None:
        self._session, self._guard, self._offload = session, guard, offload
        self._catalogue, self._files = catalogue, replica.store.weights
        self.follower = Follower(session, catalogue, self._files, swarm, offload, settings)
        chunk_bytes = replica.manifest.checkpoint_chunk_bytes
        self._publisher = Publisher(session, catalogue, self._files, swarm, offload, self.follower, chunk_bytes)
        self._begun, self._loaded, self._heard = False, trio.Event(), trio.Event()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Continue with the files from before a restart, if there are any."""
        if not self._files.is_empty:
            self._begin()

    def _begin(self) -> None:
        if not self._begun and self._guard.is_open:
            self._begun = True
            self._guard.start(self._live)

    async def _live(self) -> None:
        await self._offload(self._files.load)
        for raw in await self._offload(self._files.statements):
            self._recall(raw)
        for root, size in self._files.sizes().items():
            blob = self._catalogue.blob(root)
            if blob is not None and blob.size != size:
                await self._offload(self._files.demote, root)
        self._loaded.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._repeat)
            nursery.start_soon(self._seek)
            while True:
                with self._guard.watch(self._session.me, "version of the weights"):
                    await self.follower.run()
                await trio.sleep(AGAIN_S)

    def _recall(self, raw: bytes) -> None:
        """Restore a statement from our disk; ignore one that is malformed or refused."""
        try:
            sender, body, _ = unpack(raw, self._session.run, max_bytes=MAX_STATEMENT_BYTES)
        except Malformed:
            return
        if isinstance(body, Version) and not self._catalogue.refusal(sender, body):
            self._catalogue.hear(Signed(body, sender, raw))

    async def _repeat(self) -> None:
        while True:
            await trio.sleep(REPEAT_S)
            newest = self._catalogue.newest
            if newest is not None and newest.publisher == self._session.me:
                await self._gossip(newest)

    async def _seek(self) -> None:
        """Request missing statements: a statement, or an answer that contained it, may have been lost."""
        pause_s, asked = FIRST_SEEK_S, set[PeerId]()
        while True:
            if not self._catalogue.has_gap:
                pause_s, self._heard = FIRST_SEEK_S, trio.Event()
                await self._heard.wait()
                continue
            changes = self._catalogue.changes
            await trio.sleep(pause_s)
            sources = self._may_know()
            if asked.issuperset(sources):
                asked.clear()  # ask every peer once before any peer twice
            peer = next((peer for peer in sources if peer not in asked), None)
            if peer is not None:
                asked.add(peer)
                await self._ask(peer)
            pause_s = FIRST_SEEK_S if self._catalogue.changes != changes else min(2 * pause_s, LONGEST_SEEK_S)

    def _may_know(self) -> list[PeerId]:
        """Return the peers to ask for missing statements.

        The publisher comes first, then peers that told us of the newest version, then other peers.
        """
        newest, sources = self._catalogue.newest, self.follower.sources(self._catalogue.highest)
        if newest is None or newest.publisher not in self._session.network.connected():
            return sources
        return [newest.publisher, *(peer for peer in sources if peer != newest.publisher)]

    async def _gossip(self, signed: Signed) -> None:
        with suppress(NetworkError):  # it is sent again
            await self._session.network.publish(signed.raw)

    # -- hearing ------------------------------------------------------------------------------------------------------

    @hears(Version, anyone=True)  # the manifest alone decides who may publish
    def hear(self, said: Statement[Version]) -> Acceptance:
        """Process a statement; return ACCEPT if it should be forwarded."""
        sender, body, bringer = said.sender, said.body, said.by
        reason = self._catalogue.refusal(sender, body)
        if reason:
            self._session.emit(Dropped(sender, "version", reason))
            return Acceptance.REJECT  # the peer that forwarded it could know that
        heard = self._catalogue.hear(Signed(body, sender, said.raw))
        self._heard.set()
        if heard is StatementOutcome.OLD:
            return Acceptance.IGNORE
        self.follower.told_by(body, bringer)
        if heard is StatementOutcome.KNOWN:
            return Acceptance.IGNORE
        if heard is StatementOutcome.NEW:
            self._tell_user(body, sender)
        else:
            self._session.emit(VersionRefused(body.version, "two different statements were signed for it"))
        if self._lacks_base(body):
            self._guard.start(self._ask, bringer)
        self._begin()
        self.follower.wake()
        return Acceptance.ACCEPT

    def _tell_user(self, body: Version, publisher: PeerId) -> None:
        patch_bytes = body.patch.blob.size if body.patch is not None else None
        self._session.emit(VersionPublished(body.version, publisher, body.kind, body.weights.size, patch_bytes))

    def _lacks_base(self, body: Version) -> bool:
        return body.patch is not None and body.patch.base not in self._catalogue.versions()

    @is_told("version", Version, max_bytes=MAX_STATEMENT_BYTES)
    async def told(self, said: Statement[Version]) -> None:
        """Process the newest statement that a peer knows; raises `Offence`, and `Refused` while we are not open."""
        if not self._guard.is_open:
            raise Refused("this peer is not open yet")
        if self.hear(said) is Acceptance.REJECT:
            raise Offence("a version that nobody takes")

    async def _ask(self, peer: PeerId) -> None:
        """Ask a peer for all versions that it knows."""
        with self._guard.watch(peer, "answer about versions"):
            try:
                question = VersionsRequest().encode()
                answer = await self._session.network.request(peer, "versions", question, timeout_s=ASK_TIMEOUT_S)
                reply = decode_body(VersionsReply, answer, max_bytes=MAX_REQUEST_BYTES)
                opened = [await self._offload(unpack, raw, self._session.run) for raw in reply.statements]
            except NetworkError:
                return  # another peer will tell us
            except Malformed as error:
                self._session.emit(Dropped(peer, "answer about versions", str(error)))
                return
            for sender, body, envelope in opened:  # all together, so that the way is chosen among all of them
                if isinstance(body, Version):
                    self._learn(peer, Signed(body, sender, envelope.raw))
        self.follower.wake()

    def _learn(self, peer: PeerId, signed: Signed) -> None:
        """Process a statement that we requested, as `hear` does, but request no further ones because of it."""
        reason = self._catalogue.refusal(signed.publisher, signed.body)
        if reason:
            self._session.emit(Dropped(peer, "version", reason))
        elif self._catalogue.hear(signed) is not StatementOutcome.OLD:
            self.follower.told_by(signed.body, peer)

    # -- telling ------------------------------------------------------------------------------------------------------

    @at(PeerMoment.GREETED)
    def met(self, peer: PeerId) -> None:
        """Send the newest statement to a peer that has just connected, because the peer may not have heard of it."""
        if self._catalogue.newest is not None:
            self._guard.start(self._tell, peer, self._catalogue.newest.raw)

    async def _tell(self, peer: PeerId, raw: bytes) -> None:
        try:
            await self._session.network.request(peer, "version", raw, timeout_s=ASK_TIMEOUT_S)
        except NetworkError:
            return  # the peer will hear of it from other peers

    @answers("versions", VersionsRequest)
    async def answer(self, peer: PeerId, question: VersionsRequest) -> bytes:
        """Return the statements of all versions that we know."""
        return VersionsReply(statements=[signed.raw for signed in self._catalogue.all()]).encode()

    # -- commands -----------------------------------------------------------------------------------------------------

    async def publish(self, source: Path, anchor_every: int = ANCHOR_EVERY) -> Version:
        """Publish a file in `folder` as the next version.  Raises `CannotPublish`."""
        self._begin()
        if not self._begun:
            raise CannotPublish("the peer is still starting; try again in a moment")
        await self._loaded.wait()
        signed = await self._publisher.publish(source, anchor_every)
        self._tell_user(signed.body, self._session.me)
        self.follower.wake()
        await self._gossip(signed)
        return signed.body

    @contextmanager
    def using(self, number: int) -> Iterator[Path | None]:
        """Yield the path of a version's file, which stays within the context; None if it is not here."""
        version = self._catalogue.versions().get(number)
        root = Hash(version.weights.root) if version is not None else Hash(b"")
        with self._files.using(root):
            yield self._files.path(root) if self._files.has(root) else None

    @property
    def folder(self) -> Path:
        """Folder of the files."""
        return self._files.folder

    def status(self) -> dict[str, Any]:
        """Return the versions as `peer weights --json` shows them."""
        here, versions = self._files.sizes(), []
        for signed in self._catalogue.all():
            body, patch = signed.body, signed.body.patch
            versions.append(
                {
                    "version": body.version,
                    "publisher": signed.publisher,
                    "kind": body.kind,
                    "weights": body.weights.root.hex(),
                    "size_bytes": body.weights.size,
                    "patch_base": patch.base if patch is not None else None,
                    "patch_bytes": patch.blob.size if patch is not None else None,
                    "here": body.weights.root in here,
                    "patch_here": patch is not None and patch.blob.root in here,
                    "refused": self._why_refused(body.version),
                }
            )
        return {
            "newest": self.follower.complete or None,
            "versions": versions,
            "disk_bytes": sum(here.values()),
            "folder": str(self._files.folder),
        }

    def _why_refused(self, number: int) -> str:
        return "two statements were signed" if number in self._catalogue.void else self.follower.refused.get(number, "")
