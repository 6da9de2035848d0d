"""Safetensors files in bf16 as versions of the weights have them, and the root over their tensors' hashes.

A file comes from a stranger, in the end: its header is read strictly.  The tensors are all BF16, lie one after the other in
the order in which the header names them, and fill the file.  So equal weights are equal files, and a patch between two
versions changes values and never the header.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from protocol.versions.catalogue import HEADER_BYTES, WEIGHT_BYTES
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, chunk_hash, hash_bytes, tree_root

LENGTH_BYTES = 8
MAX_TENSORS = 1 << 16
MAX_NAME_CHARS, MAX_DIMENSIONS, MAX_LENGTH = 1000, 16, 1 << 40
METADATA = "__metadata__"


@dataclass(frozen=True)
class Tensor:
    """Bytes [start, stop) of a file."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


def tensors_in(file: memoryview) -> list[Tensor]:
    """The tensors of a file, in order; raises `Malformed` for one that no version has."""
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
    """The tensor whose bytes begin at `at`, where the header puts it, too."""
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
    """The root over the names, shapes and hashes of a file's tensors; raises `Malformed`.  Reads all of it."""
    return tree_root([_leaf(tensor, chunk_hash(file[tensor.start : tensor.stop])) for tensor in tensors_in(file)])


def _leaf(tensor: Tensor, digest: Hash) -> Hash:
    return hash_bytes("tensor", canonical.encode([tensor.name, list(tensor.shape), digest]))
