"""Small safetensors files in bf16, and versions of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

U16 = npt.NDArray[np.uint16]
COLUMNS = 64


def values(count: int, seed: int) -> U16:
    """Random weights as the upper halves of fp32 numbers."""
    drawn = np.random.default_rng(seed).standard_normal(count, dtype=np.float32)
    return (drawn.view(np.uint32) >> 16).astype(np.uint16)


def stepped(old: U16, share: float, seed: int) -> U16:
    """A share of the values changed by one bit."""
    new = old.copy()
    new[np.random.default_rng(seed).random(len(old)) < share] ^= 1
    return new


def safetensors(*tensors: U16, dtype: str = "BF16") -> bytes:
    """A file of these tensors, which are t0, t1, …"""
    header, at = {}, 0
    for number, tensor in enumerate(tensors):
        header[f"t{number}"] = {"dtype": dtype, "shape": [len(tensor)], "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    return with_header(header, b"".join(tensor.tobytes() for tensor in tensors))


def with_header(header: object, body: bytes) -> bytes:
    """A file with this header, whatever it says."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def weights(count: int, seed: int = 1) -> bytes:
    """A file of two tensors with `count` values in all."""
    drawn = values(count, seed)
    return safetensors(drawn[: count // 3], drawn[count // 3 :])


def next_weights(file: bytes, share: float, seed: int) -> bytes:
    """The same file with a share of its values changed."""
    head = 8 + int.from_bytes(file[:8], "little")
    return file[:head] + stepped(np.frombuffer(file[head:], np.uint16), share, seed).tobytes()


def put(folder: Path, data: bytes) -> Path:
    """A file to be published, where it has to lie."""
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / ".given.new"
    path.write_bytes(data)
    return path
