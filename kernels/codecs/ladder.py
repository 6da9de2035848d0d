"""The ladder of codecs: each step names the formats of contributions and results, and the decay of the error feedback.

    step    contribution  result  feedback   bits of a contribution, of a result
    int8    int8          int8    none       8.125   8.125
    int4    int4          int4    1          4.25    4.25
    int2    int2          int4    1          2.25    4.25
    top64   top64         top256  1          0.230   0.887
    bf16    bf16          bf16    none       16      16

Error feedback (Seide et al. 2014, "1-bit SGD") belongs to the member: the member keeps the part of its difference that the
codec left out, the residual, and adds it, times the decay, to its next difference. A result has no feedback: it is a pure
function of its contributions, so any peer can compute and audit it exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from kernels.codecs.format import PIECE, Floats, Format
from kernels.codecs.quantised import BFloat16, Int2, Int4, Int8
from kernels.codecs.sparse import TopK

CodecName = Literal["int8", "int4", "int2", "top64", "bf16"]


@dataclass(frozen=True)
class Codec:
    """A step of the ladder.  feedback: decay of the residual that is added to a difference; None without error feedback."""

    name: CodecName
    contribution: Format
    result: Format
    feedback: float | None

    @property
    def block(self) -> int:
        """Number of values that must stay together in both formats."""
        return max(self.contribution.block, self.result.block)  # all blocks are powers of two

    def encode_range(self, difference: Floats, residual: Floats | None, out: Any, count: int, start: int) -> None:
        """Encode a range of a contribution of `count` values, as `Format.encode_range` does, with error feedback.

        difference: overwritten.  residual: the residual of the same values, replaced by the part that the format left out;
        numbers in it that are not finite are taken as 0.  None without error feedback.  Raises ValueError as
        `Format.encode_range` does; the residual is then undefined.
        """
        if residual is None or self.feedback is None:
            return self.contribution.encode_range(difference, out, count, start)
        decay, longest = np.float32(self.feedback), min(PIECE, difference.size)
        scratch = np.empty(longest, np.float32)
        for at in range(0, difference.size, PIECE):
            values, left = difference[at : at + PIECE], residual[at : at + PIECE]
            sent = scratch[: values.size]
            with_residual(values, left, decay, sent)
            self.contribution.encode_range(values, out, count, start + at)
            self.contribution.decode(out, count, sent, start + at)
            np.subtract(values, sent, out=left)


def with_residual(difference: Floats, residual: Floats, decay: np.float32, scratch: Floats) -> None:
    """Add decay times the residual to the difference, in place; add 0 for numbers that are not finite."""
    np.multiply(residual, decay, out=scratch)
    scratch[~np.isfinite(scratch)] = 0
    np.add(difference, scratch, out=difference)


INT8, INT4, INT2, TOP64, TOP256, BF16 = Int8(), Int4(), Int2(), TopK(64), TopK(256), BFloat16()

LADDER: Mapping[str, Codec] = {
    "int8": Codec("int8", INT8, INT8, None),
    "int4": Codec("int4", INT4, INT4, 1.0),
    "int2": Codec("int2", INT2, INT4, 1.0),
    "top64": Codec("top64", TOP64, TOP256, 1.0),
    "bf16": Codec("bf16", BF16, BF16, None),
}
"""The codecs by the names in manifests."""
assert tuple(LADDER) == get_args(CodecName)


def codec_named(name: str) -> Codec:
    """Return the codec of this name; raise ValueError if there is none."""
    if name not in LADDER:
        raise ValueError(f"unknown codec {name!r}: this version knows {', '.join(LADDER)}")
    return LADDER[name]
