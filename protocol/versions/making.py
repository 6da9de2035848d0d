"""Files of versions, made from others: by a patch, from equal chunks, or for a new version that is to be published.

Blocking, and heavy: all bytes are read and hashed.  Call it in worker threads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from protocol.content.blob import ChunkSet, set_of
from protocol.content.patches import apply_patch, make_patch
from protocol.state.disk import map_file
from protocol.state.weight_files import Part, WeightFiles, leaves_of
from protocol.versions.route import Leg
from protocol.versions.tensors import tensor_root, tensors_in
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.versions import BlobName, PatchName, Version

MADE = ".made.new"
"""A patch that is being made; what an earlier life left of it is removed with all such files."""


class Made(Enum):
    """What came of a leg whose blob is here."""

    RIGHT = "right"
    WRONG = "wrong"
    """The blob is the one that was signed, and does not lead to the weights that were."""
    LOST = "lost"
    """A file that it needs is damaged, and has to be fetched again."""


# -- taking -----------------------------------------------------------------------------------------------------------


def begin_fetch(
    files: WeightFiles, blob: BlobName, leaves: Sequence[Hash], others: Collection[BlobName]
) -> tuple[Part, ChunkSet]:
    """A file to fetch `blob` into, and the chunks that it has: from an earlier life, or copied from `others`.

    Raises `StoreFull`.
    """
    files.write_leaves(Hash(blob.root), leaves)
    part = files.begin(Hash(blob.root), blob.size)
    missing = set(part.missing(leaves, blob.chunk_bytes))
    wanted = {leaves[chunk]: chunk for chunk in missing}
    for other in others:
        if other.chunk_bytes != blob.chunk_bytes or not wanted:
            continue
        for number, leaf in enumerate(files.leaves(Hash(other.root)) or ()):
            if leaf in wanted:
                at = number * blob.chunk_bytes
                data = files.read(Hash(other.root), at, min(blob.chunk_bytes, other.size - at), leaf)
                if data is not None:
                    part.view[wanted[leaf] * blob.chunk_bytes :][: len(data)] = data
                    missing.discard(wanted.pop(leaf))
    return part, ((1 << blob.count) - 1) & ~set_of([*missing])


def finish(files: WeightFiles, leg: Leg) -> Made:
    """The blob of a leg is here: have the weights that it leads to.  Raises `StoreFull`."""
    version, root = leg.version, Hash(leg.version.weights.root)
    if leg.base is not None and not files.has(root):
        made = _patch(files, leg, leg.base)
        if made is not Made.RIGHT:
            return made
    whole = files.view(root, version.weights.size)
    if whole is None:
        return Made.LOST
    try:
        return Made.RIGHT if tensor_root(whole) == version.tensors else _whose_fault(files, [version.weights])
    except Malformed:
        return _whose_fault(files, [version.weights])


def _patch(files: WeightFiles, leg: Leg, base_name: BlobName) -> Made:
    weights = leg.version.weights
    base, patch = files.view(Hash(base_name.root), base_name.size), files.view(Hash(leg.blob.root), leg.blob.size)
    if base is None or patch is None:
        return Made.LOST
    part = files.begin(Hash(weights.root), weights.size)
    try:
        apply_patch(base, patch, part.view)
        leaves = leaves_of(part.view, weights.chunk_bytes)
        if tree_root(leaves) == weights.root:
            files.publish(part, Hash(weights.root), leaves)
            return Made.RIGHT
    except Malformed:
        pass
    files.remove(Hash(weights.root))
    return _whose_fault(files, [base_name, leg.blob])


def _whose_fault(files: WeightFiles, blobs: Collection[BlobName]) -> Made:
    """Whether one of these complete files is not what it was; it is fetched again then."""
    lost = False
    for blob in blobs:
        view = files.view(Hash(blob.root), blob.size)
        if view is None:
            lost = True
            continue
        if tree_root(leaves_of(view, blob.chunk_bytes)) != blob.root:
            files.demote(Hash(blob.root))
            lost = True
    return Made.LOST if lost else Made.WRONG


# -- publishing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """The version that a new one follows."""

    number: int
    weights: BlobName


def make_version(
    files: WeightFiles, source: Path, number: int, chunk_bytes: int, most_bytes: int, base: Base | None, anchor: bool
) -> Version:
    """Take the file `source`, which lies in the folder of `files`, in as the version `number`, with a patch from `base`.

    anchor: whether it is to be had whole; it is in any case where no patch from `base` is smaller.  Raises `Malformed` for a
    file that no version has, and `StoreFailed`.
    """
    view = map_file(source)
    if view is None or len(view) > most_bytes:
        raise Malformed("no file of weights of this run's model")
    tensors, leaves = tensor_root(view), leaves_of(view, chunk_bytes)
    weights = BlobName(size=len(view), chunk_bytes=chunk_bytes, root=tree_root(leaves))
    before = files.view(Hash(base.weights.root), base.weights.size) if base is not None else None
    if before is not None and tensors_in(before) != tensors_in(view):
        raise Malformed("its tensors have other names or shapes than those of the version before")
    patch = None
    if before is not None and base is not None and len(before) == len(view) and base.weights.root != weights.root:
        patch = _make_patch(files, before, view, chunk_bytes, base)
    if not files.has(Hash(weights.root)):
        files.adopt(source, Hash(weights.root), leaves)
    return Version(version=number, weights=weights, tensors=tensors, anchor=anchor or patch is None, patch=patch)


def _make_patch(files: WeightFiles, before: memoryview, after: memoryview, chunk_bytes: int, base: Base) -> PatchName | None:
    """None where the whole is as small."""
    path = files.folder / MADE
    with path.open("wb") as file:
        for piece in make_patch(before, after):
            files.disk.write(file, piece)
            if file.tell() >= len(after):
                break
        size = file.tell()
    made = map_file(path)
    if made is None or size >= len(after):
        files.disk.remove(path)
        return None
    leaves = leaves_of(made, chunk_bytes)
    blob = BlobName(size=size, chunk_bytes=chunk_bytes, root=tree_root(leaves))
    files.adopt(path, Hash(blob.root), leaves)
    return PatchName(base=base.number, base_root=base.weights.root, blob=blob)
