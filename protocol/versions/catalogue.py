"""Catalogue of the announced versions of the weights; it decides which versions are usable, and which is the newest.

Pure.  The publishers are the run's organiser and the keys that its manifest names.  A number may have only one statement: if
two different statements are signed for it, by any publishers, the number is void.  A peer that has heard both uses no
version of that number; publishers continue with the next number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from protocol.blobs.blob import EvenSpans
from protocol.blobs.store import BlobStore, Holding, StoreShelf
from protocol.run.manifest import RunManifest, demo_manifest
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.rollouts import BlobName, Version

KEPT = 128
"""Number of versions, counted down from the highest, whose statements are remembered: at most two for each version."""
WEIGHT_BYTES = 2
"""Bytes of a parameter in bf16."""
HEADER_BYTES = 4 << 20
"""Most bytes of a file's header."""


class StatementOutcome(Enum):
    """Outcome of hearing a statement."""

    NEW = "new"
    KNOWN = "known"
    OLD = "old"
    VOID = "void"
    """The statement differs from another statement of its number, so the number is void from now on."""


@dataclass(frozen=True)
class Signed:
    """Version and its publisher.  raw: the envelope, as proof."""

    body: Version
    publisher: PeerId
    raw: bytes


class Catalogue:
    """Statements about the versions of one run.  Any thread may read it, but only one may change it."""

    def __init__(self, manifest: RunManifest) -> None:
        anybody = demo_manifest().manifest.organiser  # everybody has the private key
        self._publishers = {*manifest.publishers, manifest.organiser} - {anybody}
        self._most_bytes = WEIGHT_BYTES * manifest.parameters + HEADER_BYTES
        self._heard: dict[int, list[Signed]] = {}
        """Statements by number, ascending; two for a void number."""
        self.changes = 0
        """Number of statements accepted so far."""

    @property
    def most_bytes(self) -> int:
        """Most bytes of a version's file."""
        return self._most_bytes

    def may_publish(self, peer: PeerId) -> bool:
        """Return True if statements of `peer` count."""
        return peer in self._publishers

    def refusal(self, publisher: PeerId, body: Version) -> str:
        """Return the reason why the run's manifest forbids a statement; empty if it does not."""
        if not self.may_publish(publisher):
            return "its sender may not publish versions of this run"
        if body.weights.size > self._most_bytes:
            return "its weights are larger than the run's model"
        return ""

    def hear(self, signed: Signed) -> StatementOutcome:
        """Add a statement for which `refusal` is empty; return the outcome."""
        number = signed.body.version
        if number <= self.highest - KEPT:
            return StatementOutcome.OLD
        known = self._heard.get(number, [])
        if any(each.body == signed.body for each in known) or len(known) > 1:
            return StatementOutcome.KNOWN
        heard = {**self._heard, number: [*known, signed]}
        self.changes += 1
        least = max(heard) - KEPT
        self._heard = {each: heard[each] for each in sorted(heard) if each > least}  # another thread may read the old dict
        return StatementOutcome.VOID if known else StatementOutcome.NEW

    @property
    def highest(self) -> int:
        """Highest number heard, void or not; 0 if there is none."""
        return max(self._heard, default=0)

    @property
    def usable(self) -> dict[int, Signed]:
        """Versions that are not void, by number, ascending."""
        return {number: heard[0] for number, heard in self._heard.items() if len(heard) == 1}

    @property
    def newest(self) -> Signed | None:
        """Usable version with the highest number."""
        return next(reversed(self.usable.values()), None)

    @property
    def has_gap(self) -> bool:
        """True if a statement is missing in the series of patches that leads to the newest version."""
        usable, number = self.usable, max(self.usable, default=0)
        while number in usable:
            patch = usable[number].body.patch
            if patch is None:
                return False
            number = patch.base  # a lower number
        return self.highest - KEPT < number and number > 0 and number not in self._heard

    @property
    def void(self) -> list[int]:
        """Numbers that are void."""
        return [number for number, heard in self._heard.items() if len(heard) > 1]

    def versions(self) -> dict[int, Version]:
        """Return the bodies of the usable versions, by number, ascending."""
        return {number: signed.body for number, signed in self.usable.items()}

    def blob(self, root: Hash) -> BlobName | None:
        """Return the file with this root, if a statement names it."""
        return next((blob for signed in self.all() for blob in signed.body.blobs if blob.root == root), None)

    def all(self) -> Iterable[Signed]:
        """Return all statements that are remembered, by number."""
        return [signed for heard in self._heard.values() for signed in heard]


# ------------------------------------------------------------------------------------------------------------------------
# Versions of the weights on disk, as blobs that other peers may fetch.


class VersionShelf(StoreShelf):
    """Shelf of the files that the statements in `catalogue` name."""

    def __init__(self, catalogue: Catalogue, store: BlobStore) -> None:
        super().__init__(store, "weights", 0)
        self._catalogue = catalogue

    def _cut(self, name: Hash, size: int) -> EvenSpans | None:
        blob = self._catalogue.blob(name)
        return EvenSpans(blob.size, blob.chunk_bytes) if blob is not None else None

    def holdings(self) -> list[Holding]:
        """Return the blobs as `ListedShelf.holdings` describes."""
        sizes = self._store.sizes()
        return [
            Holding("weights" if blob is signed.body.weights else "patch", signed.body.version, blob.root.hex(), blob.size)
            for signed in self._catalogue.all()
            for blob in signed.body.blobs
            if blob.root in sizes
        ]
