"""Safetensors files, read and written one block at a time.

The format is the length of a header, the header in JSON, and the tensors' bytes (https://huggingface.co/docs/safetensors).
We do not use the library, because it needs all tensors of a file in memory to write the file, and cannot read bf16 without
torch. A file may come from anywhere, so its whole header is checked before any tensor is read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.outside_files import open_outside
from protocol.formats.model import ParameterPlace
from trainer.git_lfs import POINTER_FLAW, is_pointer_file


class FolderError(ValueError):
    """Error for a Hugging Face folder that cannot be used; the text is one sentence for a person, with the remedy."""


# ------------------------------------------------------------------------------------------------------------------------
# Number formats of safetensors files, and their conversion from and to the fp32 of the flat vector.


F32 = npt.NDArray[np.float32]

WIDTHS = {"F32": 4, "BF16": 2, "F16": 2}
"""Bytes of a number, by the name of its format in safetensors files; other formats are not supported."""


class ExportFormat(StrEnum):
    """Number format of an exported folder."""

    BF16 = "bf16"
    FP32 = "fp32"

    @property
    def tensor_name(self) -> str:
        """Name of the format in safetensors files."""
        return "BF16" if self is ExportFormat.BF16 else "F32"

    @property
    def torch_name(self) -> str:
        """Name of the format in a config.json."""
        return "bfloat16" if self is ExportFormat.BF16 else "float32"

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return WIDTHS[self.tensor_name]


def written(values: F32, form: ExportFormat) -> bytes:
    """Return the bytes of fp32 numbers in an exported file, little endian.

    bf16 is rounded to nearest, ties to even, as in torch; every NaN becomes torch's NaN.
    """
    if form is ExportFormat.FP32:
        return values.astype("<f4", copy=False).tobytes()
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (
        bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    ) >> 16  # an infinity stays infinite, because its low bits are 0
    return np.where(np.isnan(values), 0x7FC0, rounded).astype("<u2").tobytes()


def read(raw: bytes, name: str) -> F32:
    """Return the fp32 numbers in bytes of the format `name`; exact, because each format is a subset of fp32."""
    if name == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, "<f2" if name == "F16" else "<f4").astype(np.float32)


# ------------------------------------------------------------------------------------------------------------------------


MAX_HEADER_BYTES = 2 << 20
"""Largest header. A run's model has at most 256 layers of 14 tensors, with about 150 bytes of header for each tensor;
parsing needs 30 bytes of memory for each byte."""
MOST_DIMENSIONS = 8
MOST_LENGTH = 1 << 48
"""Largest dimension of a tensor. Computing products of larger ones takes too long."""
QUANTISED = ("F8_", "F4", "F6_", "I8", "U8", "I4", "U4", "I16", "U16", "I32", "U32", "I64", "U64")
"""Prefixes of number formats that hold codes, not values."""
LENGTH_BYTES = 8
READ_BYTES = 4 << 20


@dataclass(frozen=True)
class StoredTensor:
    """Tensor in a file: its format's name, its shape, and its byte range [start, stop) in the file."""

    path: Path
    form: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def values(self, first: int = 0, count: int | None = None) -> Iterator[F32]:
        """Yield the tensor's numbers in fp32, row after row, in blocks of at most `READ_BYTES` of the file.

        first, count: the first number to read, and the count of numbers; None for all that follow.
        """
        begin = self.start + first * WIDTHS[self.form]
        stop = self.stop if count is None else begin + count * WIDTHS[self.form]
        assert self.start <= begin <= stop <= self.stop
        return (read(raw, self.form) for raw in self._raw(begin, stop))

    def raw(self) -> Iterator[bytes]:
        """Yield the tensor's bytes in the file, in blocks of at most `READ_BYTES`."""
        return self._raw(self.start, self.stop)

    def _raw(self, begin: int, stop: int) -> Iterator[bytes]:
        with open_outside(self.path) as file:
            file.seek(begin)
            for at in range(begin, stop, READ_BYTES):
                raw = file.read(min(READ_BYTES, stop - at))
                if len(raw) != min(READ_BYTES, stop - at):
                    raise FolderError(f"{self.path} became shorter while it was read; copy it again")
                yield raw


def finite_values(name: str, tensor: StoredTensor, remedy: str) -> Iterator[F32]:
    """Yield the tensor's numbers in blocks. Raises `FolderError` for NaN and infinity, with `remedy` as its last clause."""
    for block in tensor.values():
        if not np.isfinite(block).all():
            raise FolderError(f"{tensor.path}: {name} contains NaN or infinite values; {remedy}")
        yield block


class ValueStream:
    """Flat vector that comes in blocks of any size, and is taken in parts of other sizes. One block is held at a time."""

    def __init__(self, blocks: Iterable[F32]) -> None:
        self._blocks = iter(blocks)
        self._left = np.empty(0, np.float32)

    def take(self, count: int) -> Iterator[F32]:
        """Yield the next `count` values in blocks."""
        while count:
            block = self._left if len(self._left) else next(self._blocks)
            part, self._left = block[:count], block[count:]
            count -= len(part)
            yield part

    def check_end(self) -> None:
        """Assert that every value has been taken."""
        assert not len(self._left) and next(self._blocks, None) is None, "more values than parameters"


def write_tensors(path: Path, places: Sequence[ParameterPlace], form: ExportFormat, stream: ValueStream) -> None:
    """Write a file that holds these tensors with the stream's next values, and sync it to disk."""
    with path.open("wb") as file:
        file.write(header_of(places, form))
        for part in stream.take(sum(place.count for place in places)):
            file.write(written(part, form))
        file.flush()
        os.fsync(file.fileno())


def header_of(places: Sequence[ParameterPlace], form: ExportFormat) -> bytes:
    """Return the header, with its length before it, of a file that holds these tensors in this order."""
    first = places[0].offset
    tensors: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for place in places:
        start = (place.offset - first) * form.width
        offsets = [start, start + place.count * form.width]
        tensors[place.name] = {"dtype": form.tensor_name, "shape": list(place.shape), "data_offsets": offsets}
    text = json.dumps(tensors, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)  # pads the header so that the numbers are aligned
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def tensors_in(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors that a file's header lists, by name. Raises `FolderError`, also for unsupported number formats.

    As in the library, tensors must follow each other without gap or overlap to the end of the file.
    """
    if is_pointer_file(path):
        raise FolderError(f"{path} {POINTER_FLAW}")
    with open_outside(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if not 2 <= length <= size - LENGTH_BYTES:
            raise FolderError(f"{path} is not a safetensors file, or is incomplete; copy it again")
        if length > MAX_HEADER_BYTES:
            raise FolderError(
                f"{path} has a header of {length} bytes, but a run's model needs at most {MAX_HEADER_BYTES}; save the model "
                "again without additional data"
            )
        raw = file.read(length)
    try:
        header = json.loads(raw, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path} has no readable header; copy it again") from error
    if not isinstance(header, dict):
        raise FolderError(f"{path} has no readable header; copy it again")
    about = header.get("__metadata__", {})
    if not isinstance(about, dict) or not all(isinstance(value, str) for value in about.values()):
        raise FolderError(
            f"{path} has __metadata__ with values other than text; copy the file again, or save the model again"
        )
    body = LENGTH_BYTES + length
    found = {name: _tensor(path, name, said, body, size) for name, said in header.items() if name != "__metadata__"}
    _check_places(path, found, body, size)
    return found


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError for a repeated name, because readers differ in the value that they use."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _check_places(path: Path, found: Mapping[str, StoredTensor], body: int, size: int) -> None:
    """Raise `FolderError` unless the tensors fill the file without gap or overlap."""
    at = body
    for name, tensor in sorted(found.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != at:
            what = "bytes of no tensor before" if tensor.start > at else "bytes of another tensor in"
            raise FolderError(f"{path} has {what} {name[:80]}; copy it again, or save the model again")
        at = tensor.stop
    if at != size:
        raise FolderError(f"{path} has bytes of no tensor at its end; copy it again, or save the model again")


def _tensor(path: Path, name: str, said: Any, body: int, size: int) -> StoredTensor:
    match said:
        case {"dtype": str(form), "shape": list(shape), "data_offsets": [start, stop]} if (
            len(shape) <= MOST_DIMENSIONS
            and all(type(length) is int and 0 <= length <= MOST_LENGTH for length in shape)
            and type(start) is type(stop) is int
        ):
            pass
        case _:
            raise FolderError(
                f"{path} has an invalid description of the tensor {name[:80]!r}; the file is damaged, copy it again"
            )
    if form not in WIDTHS:
        what = "is quantised, in" if form.startswith(QUANTISED) else "holds numbers of"
        raise FolderError(
            f"{path}: {name[:80]} {what} the format {form[:20]!r}, but only {', '.join(WIDTHS)} are read; use a version of "
            "the model in one of these formats, such as the model before quantisation"
        )
    if not 0 <= start <= stop <= size - body or stop - start != math.prod(shape) * WIDTHS[form]:
        raise FolderError(f"{path} is incomplete: it lacks a part of the tensor {name[:80]}; copy it again")
    return StoredTensor(path, form, tuple(shape), body + start, body + stop)
