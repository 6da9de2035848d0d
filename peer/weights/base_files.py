"""Files of a run's frozen model that are on this computer already: in the organiser's folder, or in Hugging Face's cache.

They are used where they lie, because they are large.  They are only read, and every chunk is checked when it is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernels.outside_files import open_outside
from protocol.blobs.store import BlobStore
from protocol.formatting import plain
from protocol.run.manifest import RunManifest
from protocol.run.sections import FILE_CHUNK_BYTES, BaseFileSection, BaseSection
from protocol.sync.fetchers import SMALL_BYTES
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from trainer.weights.folder import check_description
from trainer.weights.safetensors_file import FolderError

MAX_CANDIDATES = 16
"""Most files of the cache that are read in search of one file."""
_HUB_NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
"""Pattern of the name of a model's repository at Hugging Face."""


def base_name(base: BaseSection) -> str:
    """Return the name of a frozen model: that of its repository at Hugging Face if a mirror lies there, else its folder's.

    Without both, it is "base".
    """
    found = (re.match(rf"https://huggingface\.co/({_HUB_NAME})/resolve/", mirror, re.ASCII) for mirror in base.mirrors)
    return next((match[1] for match in found if match), plain(base.name, 100) or "base")


def is_hub_name(name: str) -> bool:
    """Return True if a name can be that of a repository at Hugging Face."""
    return re.fullmatch(_HUB_NAME, name, re.ASCII) is not None


def folder_name(folder: Path) -> str:
    """Return the name of a model's folder; in Hugging Face's cache, the name of its repository."""
    *_, cached, snapshots, _ = ("", "", "", *Path(os.path.abspath(folder)).parts)
    name = cached.removeprefix("models--").replace("--", "/", 1) if snapshots == "snapshots" else ""
    return plain(name or Path(os.path.abspath(folder)).name, 100)


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


def is_here(files: BlobStore, file: BaseFileSection) -> bool:
    """Return True if a file is here in its size; a link to a file that was since moved or removed is not."""
    return files.sizes().get(file.name) == file.size


def missing_bytes(base: BaseSection, files: BlobStore) -> int:
    """Return the bytes of disk that fetching the rest of a frozen model takes; a begun file has its room already."""
    begun = files.parts()
    return sum(file.size for file in base.files if not is_here(files, file) and begun.get(file.name) != file.size)


def description_flaw(manifest: RunManifest, files: BlobStore) -> str:
    """Return a sentence if no trainer could read the run's frozen model, by its small files; "" otherwise.  Blocking."""
    assert manifest.base is not None
    small = [file for file in manifest.base.files if file.size <= SMALL_BYTES]
    paths = {file.path: Path(os.path.realpath(files.path(file.name))) for file in small}
    try:
        check_description(manifest.model, {file.path: file.size for file in manifest.base.files}, paths)
    except FolderError as error:
        return str(error)
    return ""


def find_base(base: BaseSection, files: BlobStore) -> int:
    """Use the frozen model's files that Hugging Face's cache has; return their number.  Blocking.  Raises `StoreFailed`."""
    files.load()
    found = 0
    for file in base.files:
        if is_here(files, file):
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
