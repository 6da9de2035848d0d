"""Number formats of safetensors files, and their conversion from and to the fp32 of the flat vector."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

# ------------------------------------------------------------------------------------------------------------------------
# Errors in a user's folder.


class FolderError(ValueError):
    """Error for a Hugging Face folder that cannot be used; the text is one sentence for a person, with the remedy."""


# ------------------------------------------------------------------------------------------------------------------------


F32 = npt.NDArray[np.float32]

WIDTHS = {"F32": 4, "BF16": 2, "F16": 2}
"""Bytes of a number, by its format's name in safetensors files; other formats are not read."""


class ExportFormat(StrEnum):
    """Number format of an exported folder."""

    BF16 = "bf16"
    FP32 = "fp32"

    @property
    def tensor_name(self) -> str:
        """The format's name in safetensors files."""
        return "BF16" if self is ExportFormat.BF16 else "F32"

    @property
    def torch_name(self) -> str:
        """The format's name in a config.json."""
        return "bfloat16" if self is ExportFormat.BF16 else "float32"

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return WIDTHS[self.tensor_name]


def written(values: F32, form: ExportFormat) -> bytes:
    """Return the bytes of fp32 numbers in an exported file, little endian."""
    return (_bf16_of(values) if form is ExportFormat.BF16 else values.astype("<f4", copy=False)).tobytes()


def read(raw: bytes, name: str) -> F32:
    """Return the fp32 numbers in bytes of the format `name`; exact, as each format is a subset of fp32."""
    if name == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, "<f2" if name == "F16" else "<f4").astype(np.float32)


def _bf16_of(values: F32) -> npt.NDArray[np.uint16]:
    """Round to the nearest bf16, ties to even, as torch does; every NaN becomes torch's NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16  # an infinity's low bits are 0: it stays one
    return np.where(np.isnan(values), 0x7FC0, rounded).astype("<u2")
