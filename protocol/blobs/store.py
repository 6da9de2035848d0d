"""Versions of the weights on disk: whole files and patches, each named by the root over its chunks' hashes.

    weights/<root>.blob          a file of weights or a patch, complete
    weights/<root>.part          one that is being fetched or made
    weights/<root>.leaves        the hashes of its chunks, behind their own hash
    weights/<number>-<hash>      a publisher's signed statement about a version, behind its hash

The folder is made when the first version comes.  A complete file whose bytes turn out to be wrong becomes a part again: its
right chunks need not be fetched once more.
"""

from __future__ import annotations

import mmap
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.blobs.blob import ChunkSet
from protocol.disk import Disk, map_file, read_guarded, write_guarded
from protocol.wire.hashes import HASH_BYTES, Hash, chunk_hash, hash_bytes, tree_root

# ------------------------------------------------------------------------------------------------------------------------
# Shelves of blobs on a peer's disk, from which the bytes of chunks are read.


@dataclass(frozen=True)
class Holding:
    """A blob that others can get from us, as `peer weights --json` shows it.

    what, number, blob: as in `protocol.events.events.TransferProgress`.
    """

    what: str
    number: int
    blob: str
    size_bytes: int


class Held(Protocol):
    """A blob, or a part of it, that is here."""

    @property
    def count(self) -> int:
        """Chunks of the whole blob."""
        ...

    @property
    def here(self) -> ChunkSet:
        """Chunks that can be read."""
        ...

    @property
    def is_urgent(self) -> bool:
        """True if a round may wait for the blob; other blobs get only the spare capacity of our line."""
        ...

    def leaves(self) -> Sequence[Hash] | None:
        """Return the hashes of all chunks, if they are known here.  Blocking."""
        ...

    def read(self, chunk: int) -> bytes | None:
        """Return the bytes of a chunk; None if they are not here any more, or were altered.  Blocking."""
        ...


class Shelf(Protocol):
    """The blobs on a peer's disk."""

    def find(self, name: Hash) -> Held | None:
        """Return a blob that is here; None for others.  Blocking."""
        ...


class ListedShelf(Shelf, Protocol):
    """A shelf that lists its blobs."""

    def holdings(self) -> list[Holding]:
        """Return the complete blobs that are here.  Blocking."""
        ...


# ------------------------------------------------------------------------------------------------------------------------


_BLOB = re.compile(r"([0-9a-f]{64})\.(blob|part|leaves)")
_STATEMENT = re.compile(r"(\d{16})-[0-9a-f]{16}")


@dataclass(frozen=True)
class Part:
    """A file that is being fetched or made; `view` is its bytes, writable until it is published.

    is_new: True if nothing was written to it yet.
    """

    root: Hash
    path: Path
    mapping: mmap.mmap
    is_new: bool = False

    @property
    def view(self) -> memoryview:
        """All bytes of the file."""
        return memoryview(self.mapping)

    def missing(self, leaves: Sequence[Hash], chunk_bytes: int) -> list[int]:
        """Return the chunks whose bytes do not match their hashes.  Reads all, unless nothing was written."""
        view = self.view
        if self.is_new:
            return [*range(len(leaves))]
        return [
            chunk
            for chunk, leaf in enumerate(leaves)
            if chunk_hash(view[chunk * chunk_bytes : (chunk + 1) * chunk_bytes]) != leaf
        ]


class BlobStore:
    """Files of one folder, complete or being fetched.  Blocking; thread-safe.  Call `load` before anything else."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.disk, self.folder = disk, folder
        self._whole: dict[Hash, int] = {}
        self._parts: dict[Hash, int] = {}
        self._damaged: set[Hash] = set()
        self._used: Counter[Hash] = Counter()
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        """True if no version was ever here."""
        return not self.folder.exists()

    def load(self) -> None:
        """Find the files left before a restart."""
        self.folder.mkdir(exist_ok=True)
        names = {path.name for path in self.folder.iterdir()}
        for name in names:
            match = _BLOB.fullmatch(name)
            if match is not None and match[2] != "leaves":
                kind = self._whole if match[2] == "blob" else self._parts
                kind[Hash(bytes.fromhex(match[1]))] = (self.folder / name).stat().st_size

    # -- what is here -------------------------------------------------------------------------------------------------

    def sizes(self) -> dict[Hash, int]:
        """Return the sizes of the complete files."""
        with self._lock:
            return dict(self._whole)

    def parts(self) -> dict[Hash, int]:
        """Return the sizes of the files that are being fetched or made."""
        with self._lock:
            return dict(self._parts)

    def damaged(self) -> set[Hash]:
        """Return the parts that were complete files earlier, since this peer started."""
        with self._lock:
            return set(self._damaged)

    def has(self, root: Hash) -> bool:
        """Return True if a file is complete, as far as we know."""
        return root in self._whole

    def leaves(self, root: Hash) -> list[Hash] | None:
        """Return the hashes of a file's chunks; None if they are missing or damaged."""
        raw = read_guarded(self.disk, self._path(root, "leaves"))
        if raw is None or not raw or len(raw) % HASH_BYTES:
            return None
        leaves = [Hash(raw[at : at + HASH_BYTES]) for at in range(0, len(raw), HASH_BYTES)]
        return leaves if tree_root(leaves) == root else None

    def index(self, root: Hash, chunk_bytes: int) -> list[Hash] | None:
        """Return `leaves`, made anew from a complete file if they are lost; None if the file is damaged as well."""
        known = self.leaves(root)
        view = map_file(self.path(root)) if known is None and self.has(root) else None
        if view is None:
            return known
        made = leaves_of(view, chunk_bytes)
        if tree_root(made) != root:
            self.demote(root)
            return None
        self.write_leaves(root, made)
        return made

    def view(self, root: Hash, size: int) -> memoryview | None:
        """Return the bytes of a complete file, unchecked, read-only; None if it is missing or became shorter."""
        view = map_file(self.path(root)) if self.has(root) else None
        if view is not None and len(view) == size:
            return view
        if self.has(root):
            self.demote(root)
        return None

    def read(self, root: Hash, start: int, size: int, leaf: Hash) -> bytes | None:
        """Return a chunk of a complete file, checked by its hash; None if it is not right, and the file is then demoted."""
        try:
            with self.path(root).open("rb") as file:
                file.seek(start)
                data = file.read(size)
        except OSError:
            data = b""
        if chunk_hash(data) == leaf:
            return data
        if self.has(root):
            self.demote(root)
        return None

    def check(self) -> None:
        """Notice complete files that are gone, or have another size than they had."""
        for root, size in self.sizes().items():
            try:
                right = self.path(root).stat().st_size == size
            except OSError:
                right = False
            if not right:
                self.demote(root)

    # -- use ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def using(self, *roots: Hash) -> Iterator[None]:
        """Protect these files from removal within the context."""
        with self._lock:
            self._used.update(roots)
        try:
            yield
        finally:
            with self._lock:
                self._used -= Counter(roots)

    def used(self) -> set[Hash]:
        """Return the files that are in use."""
        with self._lock:
            return set(self._used)

    # -- changes ------------------------------------------------------------------------------------------------------

    def begin(self, root: Hash, size: int) -> Part:
        """Begin or continue a file of `size` bytes.  Raises `StoreFull`."""
        path = self._path(root, "part")
        if path.exists() and path.stat().st_size == size:
            part = Part(root, path, self.disk.resume(path, size))
        else:
            part = Part(root, path, self.disk.allocate(path, size), is_new=True)
        with self._lock:
            self._parts[root] = size
        return part

    def publish(self, part: Part, root: Hash, leaves: Sequence[Hash]) -> None:
        """Publish a complete file under the name of `root`: flush its bytes, then rename it.  Raises `StoreFailed`."""
        self.write_leaves(root, leaves)
        self.disk.publish(part.path, part.mapping, self.path(root))
        with self._lock:
            self._parts.pop(part.root, None)
            self._damaged.discard(root)
            self._whole[root] = len(part.mapping)

    def adopt(self, source: Path, root: Hash, leaves: Sequence[Hash]) -> None:
        """Publish a complete file of this folder: flush its bytes, then rename it.  Raises `StoreFailed`."""
        size = source.stat().st_size
        with source.open("r+b") as file:
            self.publish(Part(root, source, mmap.mmap(file.fileno(), size)), root, leaves)

    def write_leaves(self, root: Hash, leaves: Sequence[Hash]) -> None:
        """Keep the hashes of a file's chunks.  Raises `StoreFull`."""
        write_guarded(self.disk, self._path(root, "leaves"), b"".join(leaves))

    def demote(self, root: Hash) -> None:
        """Turn a damaged complete file into a part, to be fetched again."""
        with self._lock:
            size = self._whole.pop(root, None)
            if size is None:
                return
            self._damaged.add(root)
            try:
                self.disk.move(self.path(root), self._path(root, "part"))
                self._parts[root] = size
            except OSError:
                pass  # it is gone altogether

    def remove(self, root: Hash) -> None:
        """Remove a file, complete or not, and its index."""
        with self._lock:
            self._whole.pop(root, None)
            self._parts.pop(root, None)
            self._damaged.discard(root)
        for kind in ("blob", "part", "leaves"):
            self.disk.remove(self._path(root, kind))

    # -- statements ---------------------------------------------------------------------------------------------------

    def keep(self, number: int, raw: bytes) -> None:
        """Keep a signed statement about a version; durable on return.  Raises `StoreFull`."""
        path = self.folder / f"{number:016}-{hash_bytes('statement', raw)[:8].hex()}"
        if not path.exists():
            write_guarded(self.disk, path, raw)

    def keep_all(self, statements: Collection[tuple[int, bytes]], least: int) -> None:
        """Keep these statements, each with its number; forget those with numbers below `least`.  Raises `StoreFull`."""
        for number, raw in statements:
            self.keep(number, raw)
        for path in self.folder.iterdir():
            match = _STATEMENT.fullmatch(path.name)
            if match is not None and int(match[1]) < least:
                self.disk.remove(path)

    def statements(self) -> list[bytes]:
        """Return all statements kept, by number."""
        paths = sorted(path for path in self.folder.iterdir() if _STATEMENT.fullmatch(path.name))
        return [raw for path in paths if (raw := read_guarded(self.disk, path)) is not None]

    def path(self, root: Hash) -> Path:
        """Return the path of a complete file."""
        return self._path(root, "blob")

    def _path(self, root: Hash, kind: str) -> Path:
        return self.folder / f"{root.hex()}.{kind}"


def is_whole(files: BlobStore, root: Hash, size: int, chunk_bytes: int) -> bool:
    """Return True if a file is here with the bytes of its name; a damaged one is demoted.  Reads all.  Blocking."""
    view = files.view(root, size)
    if view is None:
        return False
    if tree_root(leaves_of(view, chunk_bytes)) == root:
        return True
    files.demote(root)
    return False


def leaves_of(data: bytes | memoryview, chunk_bytes: int) -> list[Hash]:
    """Return the hashes of the chunks of some bytes."""
    return [chunk_hash(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)]
