"""Files of a run's frozen model that are on this computer already: in the organiser's folder, or in Hugging Face's cache.

They are used where they lie, because they are large.  They are only read, and every chunk is checked when it is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernels.outside_files import open_outside
from protocol.blobs.store import BlobStore
from protocol.run.manifest import RunManifest
from protocol.run.sections import FILE_CHUNK_BYTES, BaseFileSection
from protocol.wire.hashes import Hash, chunk_hash, tree_root

MAX_CANDIDATES = 16
"""Most files of the cache that are read in search of one file."""


def describe_file(path: Path) -> dict[str, Any]:
    """Return the manifest's entry for a file of a frozen model.  Raises OSError."""
    return {"path": path.name, "size": path.stat().st_size, "root": tree_root(_leaves(path)).hex()}


def link_file(files: BlobStore, file: BaseFileSection, path: Path) -> bool:
    """Use a file on this computer as a file of the run; return False if its bytes differ.

    Raises OSError if it cannot be read, and `StoreFailed`.
    """
    leaves = _leaves(path)
    if tree_root(leaves) != file.name:
        return False
    files.link(file.name, path, leaves)
    return True


def find_base(manifest: RunManifest, files: BlobStore) -> int:
    """Use the frozen model's files that Hugging Face's cache has; return their number.  Blocking.  Raises `StoreFailed`."""
    files.load()
    found = 0
    for file in manifest.base.files if manifest.base is not None else ():
        if files.has(file.name):
            continue
        for path in _candidates(file):
            with suppress(OSError):
                if link_file(files, file, path):
                    found += 1
                    break
    return found


def hub_cache() -> Path:
    """Return the folder in which Hugging Face's programs keep the models that they have downloaded."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")


def _candidates(file: BaseFileSection) -> Iterator[Path]:
    """Yield files of the cache with the name and the size of a file."""
    count = 0
    for path in sorted(hub_cache().glob(f"models--*/snapshots/*/{file.path}")):
        with suppress(OSError):
            if path.stat().st_size == file.size and count < MAX_CANDIDATES:
                count += 1
                yield path


def _leaves(path: Path) -> list[Hash]:
    """Return the hashes of a file's chunks.  Raises OSError."""
    leaves = []
    with open_outside(path) as opened:
        while piece := opened.read(FILE_CHUNK_BYTES):
            leaves.append(chunk_hash(piece))
    return leaves
