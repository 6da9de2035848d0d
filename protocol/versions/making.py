"""Construction of versions' files: by a patch, or from a file of weights that is to be published.

Except for `route`, these functions block for long, because they read and hash all bytes.  Call these functions in worker
threads.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from protocol.blobs.store import BlobStore, leaves_of
from protocol.disk import in_turn, let_go, map_file
from protocol.versions.catalogue import HEADER_BYTES, WEIGHT_BYTES
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, chunk_hash, hash_bytes, tree_root
from protocol.wire.rollouts import BlobName, PatchName, Version

# ------------------------------------------------------------------------------------------------------------------------
# Choice of the way to a version of the weights with the fewest bytes.
#
# Pure.  A patch leads from a usable version to a version with a higher number, and an anchor can be fetched whole.  So one
# pass over the numbers finds the best way to each version.


@dataclass(frozen=True)
class Leg:
    """Leg of a route: with `blob`, the weights of `version` can be made.

    base: the weights that the patch is applied to; None if the blob is the weights themselves.
    """

    version: Version
    blob: BlobName
    base: BlobName | None


@dataclass(frozen=True)
class Route:
    """Route to a version.  size_bytes: bytes to fetch.  legs: empty if the weights are already here."""

    size_bytes: int
    legs: tuple[Leg, ...] = ()


def route(
    usable: Mapping[int, Version], target: int, here: Collection[Hash], refused: Collection[Hash] = ()
) -> Route | None:
    """Return the route with the fewest bytes to the version `target`; None if no route exists.

    usable: versions by number, ascending.  here: roots of weights and patches that need not be fetched.  refused: roots of
    blobs that proved useless.
    """
    ways: dict[Hash, Route] = {root: Route(0) for root in map(Hash, here)}
    for number, version in usable.items():
        if number > target:
            break
        root = Hash(version.weights.root)
        for leg in _legs(usable, version):
            before = Route(0) if leg.base is None else ways.get(Hash(leg.base.root))
            if before is None or leg.blob.root in refused:
                continue
            size = before.size_bytes + (0 if leg.blob.root in here else leg.blob.size)
            if root not in ways or (size, len(before.legs) + 1) < (ways[root].size_bytes, len(ways[root].legs)):
                ways[root] = Route(size, (*before.legs, leg))
    return ways.get(Hash(usable[target].weights.root)) if target in usable else None


def _legs(usable: Mapping[int, Version], version: Version) -> list[Leg]:
    legs = [Leg(version, version.weights, None)] if version.anchor else []
    patch = version.patch
    base = usable[patch.base].weights if patch is not None and patch.base in usable else None
    if patch is not None and base is not None and (base.root, base.size) == (patch.base_root, version.weights.size):
        legs.append(Leg(version, patch.blob, base))
    return legs


# ------------------------------------------------------------------------------------------------------------------------
# Safetensors files in bf16, in the form required of versions, and the root over their tensors' hashes.
#
# A file may come from a stranger, so its header is parsed strictly.  All tensors are BF16, lie one after the other in the
# order in which the header names them, and fill the file.  So a patch between two versions changes only values, never the
# header.


LENGTH_BYTES = 8
MAX_TENSORS = 1 << 16
MAX_NAME_CHARS, MAX_DIMENSIONS, MAX_LENGTH = 1000, 16, 1 << 40
METADATA = "__metadata__"


@dataclass(frozen=True)
class Tensor:
    """Tensor in the bytes [start, stop) of a file."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


def tensors_in(file: memoryview) -> list[Tensor]:
    """Return the tensors of a file, in order; raises `Malformed` for a file that cannot be a version."""
    length = int.from_bytes(file[:LENGTH_BYTES], "little")
    if not 2 <= length <= min(HEADER_BYTES - LENGTH_BYTES, len(file) - LENGTH_BYTES):
        raise Malformed("no safetensors file, or only a part of one")
    try:
        header = json.loads(bytes(file[LENGTH_BYTES : LENGTH_BYTES + length]), object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise Malformed("a safetensors file without a readable header") from error
    if not isinstance(header, dict):
        raise Malformed("a safetensors file without a readable header")
    at, found = LENGTH_BYTES + length, list[Tensor]()
    body = at
    for name, said in header.items():
        if name != METADATA:
            found.append(_tensor(name, said, body, at))
            at = found[-1].stop
    if at != len(file) or not 0 < len(found) <= MAX_TENSORS:
        raise Malformed("a safetensors file that its tensors do not fill")
    return found


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name stands twice")
    return fields


def _tensor(name: str, said: Any, body: int, at: int) -> Tensor:
    """Return the tensor whose bytes begin at `at`; raises `Malformed` if the header puts it elsewhere or it is not bf16."""
    match said:
        case {"dtype": "BF16", "shape": list(shape), "data_offsets": [int(start), int(stop)]} if (
            len(said) == 3
            and len(name) <= MAX_NAME_CHARS
            and name.isprintable()
            and len(shape) <= MAX_DIMENSIONS
            and all(type(length) is int and 0 <= length < MAX_LENGTH for length in shape)
        ):
            if body + start == at and stop - start == WEIGHT_BYTES * math.prod(shape):
                return Tensor(name, tuple(shape), at, body + stop)
    raise Malformed(f"the tensor {name[:80]!r} is not bf16, or not where it belongs")


def tensor_root(file: memoryview) -> Hash:
    """Return the root over the names, shapes and hashes of a file's tensors; raises `Malformed`.  Reads the whole file."""
    tensors = tensors_in(file)
    parts = in_turn(file, (slice(tensor.start, tensor.stop) for tensor in tensors))
    return tree_root([_leaf(tensor, chunk_hash(part)) for tensor, part in zip(tensors, parts, strict=True)])


def _leaf(tensor: Tensor, digest: Hash) -> Hash:
    return hash_bytes("tensor", canonical.encode([tensor.name, list(tensor.shape), digest]))


# ------------------------------------------------------------------------------------------------------------------------
# Patches between two versions of the weights: lossless, and small if few values change.
#
# A step of reinforcement learning leaves about 99 of 100 bf16 weights unchanged.  A patch encodes the positions of the
# changed weights as gaps and stores their new values, not differences, so that the result equals the new version bit by bit.
# Both versions are files of the same size, read as 16-bit values; a patch is applied block by block, and needs memory for
# one block.
#
# Form: `MAGIC`, the number of values (8 bytes); then for each block of `BLOCK` values the sizes of its four streams (4 bytes
# each, little-endian like everything here) and the streams, each a zstd frame:
#
# * gaps: the number of unchanged values before each changed value, one byte each; 255 stands for 255 or more,
# * long gaps: for each gap of 255 or more, the rest (4 bytes each),
# * the low bytes of the new values, and their high bytes: the latter hold sign and exponent, which compress well.
#
# A patch comes from a stranger: with any contents, applying it takes bounded memory and ends, or raises `Malformed`.


MAGIC = b"manyhands patch 1"
BLOCK = 1 << 22
"""Values of 16 bits in a block: 8 MiB of each version."""
LEVEL = 3
ESCAPE = 255
_HEAD = struct.Struct(f"<{len(MAGIC)}sQ")
_SIZES = struct.Struct("<4I")

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]


def make_patch(old: memoryview, new: memoryview) -> Iterator[bytes]:
    """Yield the pieces of the patch from `old` to `new`: its head, then one piece for each block.

    Both versions must have the same number of bytes.  Raises `Malformed` if it is odd.
    """
    before, after = _values(old), _values(new)
    assert len(before) == len(after), "versions of one size"
    yield _HEAD.pack(MAGIC, len(after))
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    for start in range(0, len(after), BLOCK):
        streams = _streams(before[start : start + BLOCK], after[start : start + BLOCK])
        frames = [compressor.compress(stream) for stream in streams]
        yield _SIZES.pack(*map(len, frames)) + b"".join(frames)
        _let_go(start, old, new)


def _streams(before: U16, after: U16) -> list[bytes]:
    places = np.flatnonzero(before != after)
    gaps = np.diff(places, prepend=-1) - 1
    values = after[places]
    return [
        np.minimum(gaps, ESCAPE).astype(np.uint8).tobytes(),
        (gaps[gaps >= ESCAPE] - ESCAPE).astype("<u4").tobytes(),
        (values & 0xFF).astype(np.uint8).tobytes(),
        (values >> 8).astype(np.uint8).tobytes(),
    ]


def apply_patch(old: memoryview, patch: memoryview, into: memoryview) -> None:
    """Write the new version into `into`, which has the size of `old` and may be the same memory.  Raises `Malformed`."""
    before, after = _values(old), _values(into)
    assert len(before) == len(after)
    if len(patch) < _HEAD.size or _HEAD.unpack_from(patch) != (MAGIC, len(before)):
        raise Malformed("a patch for weights of another size")
    decompressor, at = zstandard.ZstdDecompressor(), _HEAD.size
    for start in range(0, len(before), BLOCK):
        count = min(BLOCK, len(before) - start)
        if len(patch) < at + _SIZES.size:
            raise Malformed("a patch that ends too soon")
        sizes = _SIZES.unpack_from(patch, at)
        at += _SIZES.size
        frames = []
        for size in sizes:
            frames.append(patch[at : at + size])
            at += size
        block = after[start : start + count]
        if into is not old:
            block[:] = before[start : start + count]
        _change(block, [_expand(decompressor, frame, 4 * count) for frame in frames])
        _let_go(start, old, into)
    if at != len(patch):
        raise Malformed("a patch that does not end")


def _let_go(start: int, *versions: memoryview) -> None:
    """Let go of the memory of a block of each version, which lies in a mapped file."""
    for version in versions:
        let_go(version[WEIGHT_BYTES * start : WEIGHT_BYTES * (start + BLOCK)])


def _expand(decompressor: zstandard.ZstdDecompressor, frame: memoryview, most: int) -> bytes:
    """Return the content of a zstd frame; raises `Malformed` if it claims to hold more than `most` bytes, or is damaged."""
    try:
        size = zstandard.get_frame_parameters(frame).content_size
        if size > most:
            raise Malformed("a patch with more values than the weights have")
        return decompressor.decompress(frame, max_output_size=size) if size else b""
    except zstandard.ZstdError as error:
        raise Malformed(f"a patch with a damaged stream: {error}") from error


def _change(block: U16, streams: list[bytes]) -> None:
    short, rest, low, high = streams
    gaps = np.frombuffer(short, np.uint8).astype(np.int64)
    escaped = gaps == ESCAPE
    if not len(short) == len(low) == len(high) <= len(block) or len(rest) != 4 * int(escaped.sum()):
        raise Malformed("a patch whose streams do not fit together")
    gaps[escaped] += np.frombuffer(rest, "<u4")
    places = np.cumsum(gaps + 1) - 1
    if len(places) and places[-1] >= len(block):
        raise Malformed("a patch that reaches beyond the weights")
    block[places] = np.frombuffer(low, np.uint8) | np.frombuffer(high, np.uint8).astype(np.uint16) << 8


def _values(data: memoryview) -> U16:
    if len(data) % WEIGHT_BYTES:
        raise Malformed("weights in an odd number of bytes, to which no patch leads")
    return np.frombuffer(data, "<u2")


# ------------------------------------------------------------------------------------------------------------------------


MADE = ".made.new"
"""File of a patch that is being made; a leftover file is removed at the next start."""


class Made(Enum):
    """Outcome of a leg whose blob is here."""

    RIGHT = "right"
    WRONG = "wrong"
    """The blob has the signed bytes, but does not lead to the signed weights."""
    LOST = "lost"
    """A file that the leg needs is damaged and must be fetched again."""


def finish(files: BlobStore, leg: Leg) -> Made:
    """Make, or check, the weights of a leg whose blob is here.  Raises `StoreFull`."""
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


def _patch(files: BlobStore, leg: Leg, base_name: BlobName) -> Made:
    weights = leg.version.weights
    base, patch = files.view(Hash(base_name.root), base_name.size), files.view(Hash(leg.blob.root), leg.blob.size)
    if base is None or patch is None:
        return Made.LOST
    part = files.begin(Hash(weights.root), weights.size)
    try:
        apply_patch(base, patch, part.view)
        leaves = leaves_of(part.view, weights.chunk_bytes)
        if tree_root(leaves) == weights.root:
            files.publish(part, leaves)
            return Made.RIGHT
    except Malformed:
        pass
    finally:
        files.end(part)
    files.remove(Hash(weights.root))
    return _whose_fault(files, [base_name, leg.blob])


def _whose_fault(files: BlobStore, blobs: Collection[BlobName]) -> Made:
    """Return LOST if one of these complete files is damaged and must be fetched again; else WRONG."""
    right = [files.is_right(Hash(blob.root), blob.size, blob.chunk_bytes) for blob in blobs]
    return Made.WRONG if all(right) else Made.LOST


# -- publishing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BaseVersion:
    """The version before a new one."""

    number: int
    weights: BlobName


def make_version(
    files: BlobStore, source: Path, number: int, chunk_bytes: int, most_bytes: int, base: BaseVersion | None, anchor: bool
) -> Version:
    """Store the file `source`, in the folder of `files`, as the version `number`, with a patch from `base`.

    anchor: True if the version can be fetched whole; it also becomes an anchor if no patch from `base` is smaller.  Raises
    `Malformed` for a file that cannot be a version, and `StoreFailed`.
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
    is_alike = before is not None and len(before) == len(view) and base is not None and base.weights.root != weights.root
    if before is not None and base is not None and is_alike and len(view) % WEIGHT_BYTES == 0:
        patch = _make_patch(files, before, view, chunk_bytes, base)
    if not files.has(Hash(weights.root)):
        files.adopt(source, Hash(weights.root), leaves)
    return Version(version=number, weights=weights, tensors=tensors, anchor=anchor or patch is None, patch=patch)


def _make_patch(
    files: BlobStore, before: memoryview, after: memoryview, chunk_bytes: int, base: BaseVersion
) -> PatchName | None:
    """Make a patch from the version `base`; return None if the patch is not smaller than the whole file."""
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
