"""Rollout: one completion of a problem, as a rollout peer submits it, and its encoding.

A rollout leaves out values that readers can compute themselves, such as rewards, advantages and lengths.

The encoding, in this order, with nothing after it:

    head     format (1), width w of a token (1), problem (8), copy (4), tokens of the prompt (4), of the output (4), bytes of
             the proofs (4); unsigned, big-endian
    tokens   of the prompt, then of the output, w bytes each, little-endian; w is the smallest width for the largest token
    made     a bit for each token of the output, the first in the highest bit of the first byte; bits beyond are 0
    proofs

A rollout has only one encoding, so the hash of the encoding identifies the rollout.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FORMAT = 1
MAX_PROBLEM = (1 << 63) - 1
"""Largest number of a problem."""
MAX_COPY = (1 << 16) - 1
"""Largest number of a completion in its group."""
MAX_TOKEN = (1 << 20) - 1
"""Largest token; the vocabularies of runs are no larger."""
MAX_PROMPT_TOKENS = 1 << 17
MAX_OUTPUT_TOKENS = 1 << 17
MAX_PROOF_BYTES = 2 << 20
"""Twice the size of the longest output's proofs, at 258 bytes for 32 tokens."""
_HEAD = struct.Struct(">BBQIIII")
_WIDEST = 3
MAX_BYTES = (
    _HEAD.size + _WIDEST * (MAX_PROMPT_TOKENS + MAX_OUTPUT_TOKENS) + MAX_OUTPUT_TOKENS // 8 + MAX_PROOF_BYTES
)  # fmt: skip
"""Size of the longest encoding; longer data need not be read."""

U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Rollout:
    """One completion.  Raises ValueError for fields that are out of bounds.

    problem: index of the problem in the environment. copy: number in the problem's group. prompt, output: tokens, at least
    one each. made: for each token of the output, True if the model chose it, False if it comes from the environment. proofs:
    proofs of the output's hidden states, in sequence.
    """

    problem: int
    copy: int
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    made: tuple[bool, ...]
    proofs: bytes

    def __post_init__(self) -> None:
        _check_range("problem", self.problem, MAX_PROBLEM)
        _check_range("copy", self.copy, MAX_COPY)
        _check_tokens("prompt", self.prompt, MAX_PROMPT_TOKENS)
        _check_tokens("output", self.output, MAX_OUTPUT_TOKENS)
        if len(self.made) != len(self.output):
            raise ValueError(f"a rollout has marks for {len(self.made)} tokens, but its output has {len(self.output)}")
        if len(self.proofs) > MAX_PROOF_BYTES:
            raise ValueError(f"a rollout has at most {MAX_PROOF_BYTES} bytes of proofs, not {len(self.proofs)}")

    def encode(self) -> bytes:
        """Return the bytes of this rollout."""
        tokens = np.array(self.prompt + self.output, dtype="<u4")
        width = _width_of(int(tokens.max()))
        head = _HEAD.pack(
            FORMAT, width, self.problem, self.copy, len(self.prompt), len(self.output), len(self.proofs)
        )  # fmt: skip
        narrow = tokens.view(np.uint8).reshape(-1, 4)[:, :width]
        return head + narrow.tobytes() + np.packbits(self.made).tobytes() + self.proofs

    @classmethod
    def decode(cls, data: bytes) -> Rollout:
        """Return the rollout that `data` encodes. Raises ValueError for bytes that `encode` cannot have produced."""
        if not _HEAD.size <= len(data) <= MAX_BYTES:
            raise ValueError(f"a rollout has {_HEAD.size} to {MAX_BYTES} bytes, not {len(data)}")
        form, width, problem, copy, prompts, outputs, proof_bytes = _HEAD.unpack_from(data)
        if form != FORMAT:
            raise ValueError(f"a rollout has the format {FORMAT}, not {form}")
        if not 1 <= width <= _WIDEST:
            raise ValueError(f"a token of a rollout has 1 to {_WIDEST} bytes, not {width}")
        _check_count("prompt", prompts, MAX_PROMPT_TOKENS)
        _check_count("output", outputs, MAX_OUTPUT_TOKENS)
        made_at = _HEAD.size + width * (prompts + outputs)
        proofs_at = made_at + -(-outputs // 8)
        if len(data) != proofs_at + proof_bytes:
            raise ValueError(f"a rollout with such a head has {proofs_at + proof_bytes} bytes, not {len(data)}")
        tokens = _tokens_in(data[_HEAD.size : made_at], width)
        made = np.unpackbits(np.frombuffer(data, np.uint8, proofs_at - made_at, made_at))
        if made[outputs:].any():
            raise ValueError("a rollout has bits beyond those of its output's tokens")
        return cls(
            problem=problem,
            copy=copy,
            prompt=tuple(tokens[:prompts]),
            output=tuple(tokens[prompts:]),
            made=tuple(made[:outputs].astype(bool).tolist()),
            proofs=bytes(data[proofs_at:]),
        )


def _tokens_in(raw: bytes, width: int) -> list[int]:
    narrow = np.frombuffer(raw, np.uint8).reshape(-1, width)
    wide: U8 = np.zeros((len(narrow), 4), np.uint8)
    wide[:, :width] = narrow
    tokens = wide.view("<u4")[:, 0]
    if _width_of(int(tokens.max())) != width:
        raise ValueError(f"a rollout's tokens have {width} bytes each, more than the largest of them needs")
    values: list[int] = tokens.tolist()
    return values


def _width_of(largest: int) -> int:
    """Return the width of a token in bytes."""
    return max(1, -(-largest.bit_length() // 8))


def _check_range(name: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise ValueError(f"a rollout's {name} is a number from 0 to {most}, not {value}")


def _check_count(name: str, count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise ValueError(f"a rollout's {name} has 1 to {most} tokens, not {count}")


def _check_tokens(name: str, tokens: tuple[int, ...], most: int) -> None:
    _check_count(name, len(tokens), most)
    if not 0 <= min(tokens) <= max(tokens) <= MAX_TOKEN:
        raise ValueError(f"a rollout's {name} has tokens from 0 to {MAX_TOKEN}, not {min(tokens)} to {max(tokens)}")
