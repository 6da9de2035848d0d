"""Publication of a version of the weights: taken in, compared with the one before, signed, kept, and only then told."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import trio

from protocol.blobs.store import BlobStore
from protocol.blobs.swarm import Swarm
from protocol.disk import StoreFailed
from protocol.offload import Offload
from protocol.transport.interface import Session
from protocol.versions.catalogue import Catalogue, Signed, StatementOutcome
from protocol.versions.following import Follower
from protocol.versions.making import BaseVersion, make_version
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.versions import Version

ANCHOR_EVERY = 10
MOST_ANCHOR_EVERY = 64
"""Most numbers from one anchor to the next: half of the remembered ones, so that nobody lacks the anchor that patches begin
with."""
ORIGINS = 4
"""Most files that are offered so that each chunk leaves us once; older ones are offered like any other."""


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
                await self._offload(self._files.keep, body.version, envelope.raw)  # we never sign another of this number
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
        """Offer the files that others will fetch so that each chunk leaves us once, as far as possible."""
        names = [body.weights] if body.anchor else []
        names += [body.patch.blob] if body.patch is not None else []
        for blob in names:
            self._swarm.originate(Hash(blob.root), blob.count)
            self._origins.append(Hash(blob.root))
        while len(self._origins) > ORIGINS:
            self._swarm.end_origin(self._origins.popleft())
