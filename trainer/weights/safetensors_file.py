"""Safetensors files, read and written a block at a time.

The format is a header in JSON behind its length, and the tensors' bytes (https://huggingface.co/docs/safetensors).  The
library is not used for it: it wants all tensors of a file in memory when it writes, and gives no bf16 without torch.
A file may come from anywhere, so all that its header says is checked before anything is read by it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.models.llama.config import ParameterPlace
from trainer.weights.errors import FolderError
from trainer.weights.numbers import F32, WIDTHS, ExportFormat, read

MAX_HEADER_BYTES = 100_000_000
"""As the library has it."""
LENGTH_BYTES = 8
READ_BYTES = 4 << 20


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its format's name, its shape, and bytes [start, stop) of the file."""

    path: Path
    form: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def values(self) -> Iterator[F32]:
        """Its numbers in fp32, row after row, in blocks of at most `READ_BYTES` of the file."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            for at in range(self.start, self.stop, READ_BYTES):
                raw = file.read(min(READ_BYTES, self.stop - at))
                if len(raw) != min(READ_BYTES, self.stop - at):
                    raise FolderError(f"{self.path} became shorter while it was read; copy it again")
                yield read(raw, self.form)


def header_of(places: Sequence[ParameterPlace], form: ExportFormat) -> bytes:
    """The head of a file that holds these tensors, which lie one after the other, in their order."""
    first = places[0].offset
    tensors: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for place in places:
        start = (place.offset - first) * form.width
        offsets = [start, start + place.count * form.width]
        tensors[place.name] = {"dtype": form.tensor_name, "shape": list(place.shape), "data_offsets": offsets}
    text = json.dumps(tensors, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)  # so that the numbers are aligned
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def tensors_in(path: Path) -> dict[str, StoredTensor]:
    """What a file says it holds, by name; raises `FolderError`.  Numbers in formats that are not read are told here."""
    size = path.stat().st_size
    if size <= LENGTH_BYTES:  # of a pipe, too, which to open would wait for ever
        raise FolderError(f"{path} is no safetensors file, or only a part of one; copy it again")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - LENGTH_BYTES):
            raise FolderError(f"{path} is no safetensors file, or only a part of one; copy it again")
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path} has no readable header; copy it again") from error
    if not isinstance(header, dict):
        raise FolderError(f"{path} has no readable header; copy it again")
    body = LENGTH_BYTES + length
    return {name: _tensor(path, name, said, body, size) for name, said in header.items() if name != "__metadata__"}


def _tensor(path: Path, name: str, said: Any, body: int, size: int) -> StoredTensor:
    match said:
        case {"dtype": str(form), "shape": list(shape), "data_offsets": [int(start), int(stop)]} if all(
            type(length) is int and length >= 0 for length in shape
        ):
            pass
        case _:
            raise FolderError(f"{path} describes the tensor {name[:80]!r} as no safetensors file does; copy it again")
    if form not in WIDTHS:
        raise FolderError(
            f"{path}: {name[:80]} holds numbers of the format {form[:20]!r}, and {', '.join(WIDTHS)} are read; save the "
            "model in one of these"
        )
    if not 0 <= start <= stop <= size - body or stop - start != math.prod(shape) * WIDTHS[form]:
        raise FolderError(f"{path} does not hold all of the tensor {name[:80]}; copy it again")
    return StoredTensor(path, form, tuple(shape), body + start, body + stop)
