"""The store of blobs: everything large on a peer's disk, whole or begun, in one folder for each kind.

`BlobFolder` does all work on the files of a folder.  `BlobStore` is the folder whose blobs are identified by the roots over
the hashes of their chunks: the run's files, sets of tasks, batches of rollouts, and reference weights.  Results and
checkpoints are identified by their rounds (`protocol.chain.results`).

    <root>.blob          a whole blob
    part-<root>.blob     a blob that is being fetched or made
    <root>.blob.leaves   the hashes of its chunks, behind their own hash
    <number>-<hash>      a signed statement about a blob, behind its hash

A blob is flushed to the disk, then renamed.  If bytes of a whole blob turn out to be wrong, it becomes a part again, so that
its right chunks need not be fetched again.
"""

from __future__ import annotations

import errno
import mmap
import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from protocol.blobs.blob import ChunkSet, EvenSpans, Spans
from protocol.bounds import BoundedDict
from protocol.disk import Disk, fill, in_turn, map_file, pieces_of, read_guarded, size_of, write_guarded
from protocol.wire.hashes import HASH_BYTES, Hash, chunk_hash, hash_bytes, tree_root

K = TypeVar("K", bound=Hashable)
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing about a file: strangers' connections may use up all file descriptors for a while."""


@dataclass(frozen=True)
class Part(Generic[K]):
    """A file of its full size that is being fetched or made; `view` is its bytes, writable until it is published.

    is_new: True if nothing was written to it yet.
    """

    key: K
    path: Path
    mapping: mmap.mmap
    is_new: bool = False

    @property
    def view(self) -> memoryview:
        """All bytes of the file."""
        return memoryview(self.mapping)

    def missing(self, leaves: Sequence[Hash], spans: Spans) -> list[int]:
        """Return the chunks whose bytes do not match their hashes.  Reads the whole file, unless it is new."""
        if self.is_new:
            return [*range(len(leaves))]
        parts = in_turn(self.view, (spans[chunk] for chunk in range(len(leaves))))
        return [chunk for chunk, (leaf, part) in enumerate(zip(leaves, parts, strict=True)) if chunk_hash(part) != leaf]


class BlobFolder(ABC, Generic[K]):
    """Blobs of one kind in a folder, whole or begun.  Blocking; thread-safe.  Call `load` before anything else.

    keeps_parts: False if a part is removed when another is begun, unless it is being worked on.  keeps_leaves: False if the
    hashes of the chunks are stored elsewhere.
    """

    keeps_parts = keeps_leaves = True

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.disk, self.folder = disk, folder
        self._whole: dict[K, int] = {}
        self._parts: dict[K, int] = {}
        self._used: Counter[K] = Counter()
        self._worked_on: set[K] = set()
        self._lock = threading.Lock()
        self._beginning = threading.Lock()
        """Held while a part is begun, so that no other thread removes it meanwhile."""

    # -- names --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def name(self, key: K) -> str:
        """Return the name of a whole blob's file."""

    @abstractmethod
    def key(self, name: str) -> K | None:
        """Return the key of the whole blob whose file has this name; None for other files."""

    def path(self, key: K) -> Path:
        """Return the path of a whole blob."""
        return self.folder / self.name(key)

    def _part_path(self, key: K) -> Path:
        return self.folder / f"part-{self.name(key)}"

    def _leaves_path(self, key: K) -> Path:
        return self.folder / f"{self.name(key)}.leaves"

    def load(self) -> None:
        """Find the blobs left before a restart."""
        self.folder.mkdir(exist_ok=True)
        for path in self.folder.iterdir():
            name = path.name.removeprefix("part-")
            if (key := self.key(name)) is not None:
                (self._whole if name == path.name else self._parts)[key] = size_of(path)

    # -- what is here -------------------------------------------------------------------------------------------------

    def sizes(self) -> dict[K, int]:
        """Return the sizes of the whole blobs."""
        with self._lock:
            return dict(self._whole)

    def parts(self) -> dict[K, int]:
        """Return the sizes of the parts."""
        with self._lock:
            return dict(self._parts)

    def has(self, key: K) -> bool:
        """Return True if a blob is whole, as far as we know."""
        return key in self._whole

    def leaves(self, key: K) -> list[Hash] | None:
        """Return the hashes of a blob's chunks; None if they are missing or damaged."""
        raw = read_guarded(self.disk, self._leaves_path(key))
        if raw is None or not raw or len(raw) % HASH_BYTES:
            return None
        return [Hash(raw[at : at + HASH_BYTES]) for at in range(0, len(raw), HASH_BYTES)]

    def view(self, key: K, size: int | None = None) -> memoryview | None:
        """Return the bytes of a whole blob, unchecked, read-only; None if it is missing or no longer has this size."""
        view = map_file(self.path(key)) if self.has(key) else None
        if view is not None and size in (None, len(view)):
            return view
        self.demote(key)
        return None

    def read(self, key: K, span: slice, leaf: Hash | None) -> bytes | None:
        """Return a chunk of a whole blob, checked if its hash is known; demote the blob and return None if it is wrong.

        Also returns None if this computer currently lacks memory or file descriptors; the blob then stays whole.
        """
        try:
            with self.path(key).open("rb") as file:
                file.seek(span.start)
                data = file.read(span.stop - span.start)
        except OSError as error:
            if error.errno in SHORTAGES:
                return None
            data = b""
        if len(data) == span.stop - span.start and leaf in (None, chunk_hash(data)):
            return data
        self.demote(key)
        return None

    def held(self, key: K, spans: Spans, hashes: Sequence[Hash] | None, *, is_urgent: bool = False) -> Held:
        """Return a whole blob for others to fetch; damage is noticed when a chunk is read.  hashes: None if unknown."""

        def read(chunk: int) -> bytes | None:
            return self.read(key, spans[chunk], hashes[chunk] if hashes is not None else None)

        return Held(len(spans), (1 << len(spans)) - 1, read, lambda: hashes, is_urgent)

    def check(self) -> None:
        """Demote whole blobs whose files are gone or have changed in size."""
        for key, size in self.sizes().items():
            if size_of(self.path(key)) != size:
                self.demote(key)

    # -- use ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def using(self, *keys: K) -> Iterator[None]:
        """Protect these blobs from removal within the context."""
        with self._lock:
            self._used.update(keys)
        try:
            yield
        finally:
            with self._lock:
                self._used -= Counter(keys)

    def used(self) -> set[K]:
        """Return the blobs that are in use."""
        with self._lock:
            return set(self._used)

    # -- changes ------------------------------------------------------------------------------------------------------

    def begin(self, key: K, size: int) -> Part[K]:
        """Begin or continue a part of `size` bytes, until it is published or `end`ed.  Raises `StoreFull`."""
        path = self._part_path(key)
        with self._beginning:
            for other in [] if self.keeps_parts else self.parts().keys() - {key} - self._worked_on:
                with self._lock:
                    self._parts.pop(other, None)
                    is_whole = other in self._whole  # it may have come in another way
                for left in (self._part_path(other), *([] if is_whole else [self._leaves_path(other)])):
                    self.disk.remove(left)
            with self._lock:
                was_worked_on = key in self._worked_on
                self._worked_on.add(key)  # before the file is mapped, or `demote` could put another one in its place
            try:
                is_new = size_of(path) != size
                part = Part(key, path, (self.disk.allocate if is_new else self.disk.resume)(path, size), is_new)
            except BaseException:
                with self._lock:
                    if not was_worked_on:
                        self._worked_on.discard(key)
                raise
            with self._lock:
                self._parts[key] = size
        return part

    def end(self, part: Part[K]) -> None:
        """Stop work on a part, published or not; a later `begin` finds its bytes again."""
        with self._lock:
            self._worked_on.discard(part.key)

    def publish(self, part: Part[K], leaves: Sequence[Hash] = ()) -> None:
        """Publish a whole blob: flush its bytes, then rename it.  Raises `StoreFailed`.  leaves: kept if given."""
        if leaves:
            self.write_leaves(part.key, leaves)
        self.disk.publish(part.path, part.mapping, self.path(part.key))
        with self._lock:
            self._parts.pop(part.key, None)
            self._whole[part.key] = len(part.mapping)
        if part.path == self._part_path(part.key):  # a file of other origin does not end work on the part
            self.end(part)

    def put(self, key: K, size: int, pieces: Iterable[bytes | memoryview], leaves: Sequence[Hash]) -> None:
        """Write a whole blob from its pieces.  Raises `StoreFailed`."""
        part = self.begin(key, size)
        try:
            fill(part.view, pieces)
            self.publish(part, leaves)
        finally:
            self.end(part)

    def adopt(self, source: Path, key: K, leaves: Sequence[Hash]) -> None:
        """Publish a whole file of this folder as a blob: flush its bytes, then rename it.  Raises `StoreFailed`."""
        size = source.stat().st_size
        with source.open("r+b") as file:
            self.publish(Part(key, source, mmap.mmap(file.fileno(), size)), leaves)

    def link(self, key: K, source: Path, leaves: Sequence[Hash]) -> None:
        """Use a file elsewhere as a whole blob; it is only read.  Raises `StoreFailed`.

        Every chunk is checked when it is read, and an altered file is forgotten (`demote`).  A begun part is removed.
        """
        self.write_leaves(key, leaves)
        self.disk.link(source, self.path(key))
        with self._lock:
            self._whole[key] = size_of(source)
            if key not in self._worked_on and self._parts.pop(key, None) is not None:
                self.disk.clear(self._part_path(key))

    def write_leaves(self, key: K, leaves: Sequence[Hash]) -> None:
        """Keep the hashes of a blob's chunks.  Raises `StoreFull`."""
        if self.keeps_leaves:
            write_guarded(self.disk, self._leaves_path(key), b"".join(leaves))

    def demote(self, key: K) -> None:
        """Turn a damaged whole blob into a part, to be fetched again; remove it if its part is already being worked on.

        Of a file elsewhere, only the link is removed.
        """
        with self._lock:
            size = self._whole.pop(key, None)
            if size is None:
                return
            if key in self._worked_on or self.path(key).is_symlink():
                self.disk.remove(self.path(key))
                return
            try:
                self.disk.move(self.path(key), self._part_path(key))
                self._parts[key] = size
            except OSError:
                pass  # the file is gone

    def remove(self, key: K) -> None:
        """Remove a blob, whole or not, and the hashes of its chunks."""
        with self._lock:
            self._whole.pop(key, None)
            self._parts.pop(key, None)
            self._worked_on.discard(key)
        for path in (self.path(key), self._part_path(key), self._leaves_path(key)):
            self.disk.remove(path)

    def drop(self, key: K) -> None:
        """Remove a whole blob; a part of it that is being worked on stays."""
        with self._beginning:
            if key not in self._worked_on:
                self.remove(key)
                return
            with self._lock:
                self._whole.pop(key, None)
            self.disk.remove(self.path(key))


_BLOB = re.compile(r"([0-9a-f]{64})\.blob")
_STATEMENT = re.compile(r"(\d{16})-[0-9a-f]{16}")


class BlobStore(BlobFolder[Hash]):
    """Blobs of one kind by their roots, and the signed statements about them.  The folder is made by `load`."""

    def name(self, key: Hash) -> str:
        """Return the name as `BlobFolder.name` describes."""
        return f"{key.hex()}.blob"

    def key(self, name: str) -> Hash | None:
        """Return the key as `BlobFolder.key` describes."""
        match = _BLOB.fullmatch(name)
        return Hash(bytes.fromhex(match[1])) if match is not None else None

    def leaves(self, key: Hash) -> list[Hash] | None:
        """Return the hashes of a blob's chunks; None if they are missing, damaged, or do not match its root."""
        leaves = super().leaves(key)
        return leaves if leaves is not None and tree_root(leaves) == key else None

    def index(self, key: Hash, chunk_bytes: int) -> list[Hash] | None:
        """Return `leaves`, recomputed from a whole blob if they are lost; None if the blob is damaged as well."""
        known = self.leaves(key)
        if known is not None or not self.has(key):
            return known
        if not (made := self._made_leaves(key, chunk_bytes)):
            return None
        if tree_root(made) != key:
            self.demote(key)
            return None
        self.write_leaves(key, made)
        return made

    def is_right(self, key: Hash, size: int, chunk_bytes: int) -> bool:
        """Return True if a whole blob has the bytes of its root; demote a damaged blob.  Reads the whole file."""
        if not self.has(key):
            return False
        made = self._made_leaves(key, chunk_bytes) if size_of(self.path(key)) == size else []
        if made and tree_root(made) == key:
            return True
        self.demote(key)
        return False

    def _made_leaves(self, key: Hash, chunk_bytes: int) -> list[Hash]:
        """Return the hashes of the chunks that a whole blob's file has now; none if it is empty or cannot be read.

        The file is not mapped: if a file elsewhere becomes shorter, that ends a process which reads its mapping (SIGBUS).
        """
        try:
            with self.path(key).open("rb") as file:
                return [chunk_hash(piece) for piece in iter(lambda: file.read(chunk_bytes), b"")]
        except OSError:
            return []

    # -- statements ---------------------------------------------------------------------------------------------------

    def keep(self, number: int, raw: bytes) -> None:
        """Keep a signed statement about a blob; durable on return.  Raises `StoreFull`."""
        path = self.folder / f"{number:016}-{hash_bytes('statement', raw)[:8].hex()}"
        if not path.exists():
            write_guarded(self.disk, path, raw)

    def keep_all(self, statements: Collection[tuple[int, bytes]], least: int) -> None:
        """Keep these statements, each with its number; remove statements with numbers below `least`.  Raises `StoreFull`."""
        for number, raw in statements:
            self.keep(number, raw)
        for path in self.folder.iterdir():
            match = _STATEMENT.fullmatch(path.name)
            if match is not None and int(match[1]) < least:
                self.disk.remove(path)

    def statements(self) -> list[bytes]:
        """Return all stored statements, by number."""
        paths = sorted(path for path in self.folder.iterdir() if _STATEMENT.fullmatch(path.name))
        return [raw for path in paths if (raw := read_guarded(self.disk, path)) is not None]


def leaves_of(data: bytes | memoryview, chunk_bytes: int) -> list[Hash]:
    """Return the hashes of the chunks of some bytes."""
    return [chunk_hash(piece) for piece in pieces_of(memoryview(data), chunk_bytes)]


# ------------------------------------------------------------------------------------------------------------------------
# Shelves: the parts of a store that a peer serves, chunk by chunk.


@dataclass(frozen=True)
class Holding:
    """A blob that others can get from us, as `peer weights --json` shows it.

    what, number, blob: as in `protocol.events.events.TransferProgress`.
    """

    what: str
    number: int
    blob: str
    size_bytes: int


@dataclass(frozen=True)
class Held:
    """A blob that is here, whole or in part.

    count: chunks of the whole blob.  here: chunks that can be read.  read: returns the bytes of a chunk; None if they are no
    longer here, or were altered; blocking.  leaves: returns the hashes of all chunks; None if they are not known here;
    blocking.  is_urgent: True if a round may wait for the blob; other blobs get only the spare capacity of our line.
    """

    count: int
    here: ChunkSet
    read: Callable[[int], bytes | None]
    leaves: Callable[[], Sequence[Hash] | None]
    is_urgent: bool = False


class Shelf(Protocol):
    """Blobs on a peer's disk that others can get."""

    def find(self, name: Hash) -> Held | None:
        """Return the blob of this name; None if it is not here.  Blocking."""
        ...

    def holdings(self) -> list[Holding]:
        """Return the whole blobs that are here.  Blocking."""
        ...


REMEMBERED = 4
"""Most blobs of a shelf whose chunks' hashes are remembered; 1 MiB each at most."""


class LeavesMemory:
    """Hashes of the chunks of some blobs in memory: the last `most` blobs that were used.  Thread-safe."""

    def __init__(self, most: int) -> None:
        self._known, self._lock = BoundedDict[Hash, Sequence[Hash]](most), threading.Lock()

    def get(self, name: Hash, load: Callable[[], Sequence[Hash] | None]) -> Sequence[Hash] | None:
        """Return the hashes of a blob's chunks; None if they are unknown, and `load` returns None."""
        with self._lock:
            if (known := self._known.get(name)) is not None:
                self._known.renew(name, known)
                return known
        leaves = load()
        if leaves is not None:
            with self._lock:
                self._known[name] = leaves
        return leaves


class StoreShelf:
    """A `Shelf` of a store.

    what: the kind of its blobs, in a word.  chunk_bytes: size of the chunks of all blobs.
    """

    def __init__(self, store: BlobStore, what: str, chunk_bytes: int) -> None:
        self._store, self._what, self._chunk_bytes = store, what, chunk_bytes
        self._hashes = LeavesMemory(REMEMBERED)

    def find(self, name: Hash) -> Held | None:
        """Return the blob as `Shelf.find` describes."""
        size = self._store.sizes().get(name)
        if size is None:
            return None
        hashes = self._hashes.get(name, lambda: self._store.index(name, self._chunk_bytes))
        if hashes is None:
            return None
        return self._store.held(name, EvenSpans(size, self._chunk_bytes), hashes)

    def holdings(self) -> list[Holding]:
        """Return the whole blobs as `Shelf.holdings` describes."""
        sizes = self._store.sizes()
        return [Holding(self._what, 0, root.hex(), sizes[root]) for root in sizes]


class Shelves:
    """Several shelves that act as one."""

    def __init__(self, *shelves: Shelf) -> None:
        self._shelves = shelves

    def find(self, name: Hash) -> Held | None:
        """Return the blob as `Shelf.find` describes."""
        return next((held for shelf in self._shelves if (held := shelf.find(name)) is not None), None)

    def holdings(self) -> list[Holding]:
        """Return the whole blobs as `Shelf.holdings` describes."""
        return [holding for shelf in self._shelves for holding in shelf.holdings()]
