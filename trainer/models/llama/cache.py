"""Rotary positions, and the cache of the keys and values of unfinished sequences, in memory that is allocated once.

Each sequence has a slot with a row for every position and one spare row, which takes the results that only fill up a
rectangular batch (padding, slots without a sequence). `Cache.look_back` gives `Decoder.forward` the past of some tokens of
some slots; `trainer.generate.engine` chooses these tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from protocol.formats.model import ModelConfig


def rotations(config: ModelConfig, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (length, width of a head), fp32, each half repeated as in Llama's Hugging Face form.

    The first half of the sines is negative, ready for the multiplication. Beyond its original context, Llama 3.1 divides low
    frequencies by a factor, keeps high ones, and interpolates between (transformers: `_compute_llama3_parameters`).
    """
    half = torch.arange(0, config.head_width, 2, dtype=torch.float32, device=device) / config.head_width
    frequencies = 1.0 / config.rope_base**half
    if config.rope_factor != 1.0:
        low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
        turns = config.rope_original_context * frequencies / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        frequencies = (1 - kept) * frequencies / config.rope_factor + kept * frequencies
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequencies)
    both = torch.cat([angles, angles], dim=-1)
    sines = both.sin()
    sines[:, : config.head_width // 2].neg_()
    return both.cos(), sines


SPAN = 64
"""Number of rows by which the span of attention grows, so that the shapes of its operands seldom change."""


class Cache:
    """Cache of keys and values, each (layers, slots, rows, key heads, width of a head).

    spare: the position of the spare row, after `length` positions.
    """

    def __init__(self, config: ModelConfig, slots: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.spare = length
        shape = (config.layers, slots, length + 1, config.kv_heads, config.head_width)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)  # zeros, not empty: NaN times 0 is NaN
        self.values = torch.zeros_like(self.keys)
        self._cos, self._sin = rotations(config, length + 1, device)
        self._group = config.heads // config.kv_heads
        self._columns = torch.arange(length + 1, device=device)

    def rows(self, span: int) -> int:
        """Return the number of rows that are read for a span."""
        return min(-(-span // SPAN) * SPAN, self.spare + 1)

    def look_back(self, slots: Tensor | int, positions_bt: Tensor, span: int) -> LookBack:
        """Return the past that tokens at these positions attend to.

        slots: int64 (B,), or the number B of first slots, which are then read in place and not copied.
        positions_bt: int64 (B, T); `spare` for tokens that do not count.  span: greater than all positions that count.
        """
        rows = self.rows(span)
        numbers = torch.arange(slots, device=positions_bt.device) if isinstance(slots, int) else slots
        hidden_bts = self._columns[:rows] > positions_bt[:, :, None]
        mask_bts = torch.zeros(hidden_bts.shape, dtype=self.keys.dtype, device=positions_bt.device)
        mask_bts.masked_fill_(hidden_bts, -torch.inf)
        return LookBack(
            self,
            slots,
            rows,
            (numbers[:, None] * (self.spare + 1) + positions_bt).flatten(),
            (self._cos[positions_bt][:, None], self._sin[positions_bt][:, None]),
            mask_bts.repeat(1, self._group, 1)[:, None],
        )

    def move(self, source: int, target: int, rows: int) -> None:
        """Copy the first rows of one slot to another."""
        for part in (self.keys, self.values):
            part[:, target, :rows] = part[:, source, :rows]

    def clear(self) -> None:
        """Zero everything, so that no NaN computed with other weights remains."""
        self.keys.zero_()
        self.values.zero_()


@dataclass(frozen=True)
class LookBack:
    """Keys and values of earlier tokens, to which a forward pass attends.

    cells: row numbers, over all slots, for the tokens. rotations: cosines and sines of the tokens' positions, (B, 1, T,
    width of a head). mask: added to the attention scores, 0 or -inf, (B, 1, queries for each key head, keys).
    """

    cache: Cache
    slots: Tensor | int
    rows: int
    cells: Tensor
    rotations: tuple[Tensor, Tensor]
    mask: Tensor

    def extend(self, layer: int, key_bhtd: Tensor, value_bhtd: Tensor) -> tuple[Tensor, Tensor]:
        """Store the tokens' keys and values; return the attended ones, (B, key heads, rows, width of a head)."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        for kept, new in ((keys, key_bhtd), (values, value_bhtd)):
            kept.flatten(0, 1).index_copy_(0, self.cells, new.transpose(1, 2).flatten(0, 1))
        if isinstance(self.slots, int):
            keys, values = keys[: self.slots, : self.rows], values[: self.slots, : self.rows]
        else:
            keys, values = keys[self.slots, : self.rows], values[self.slots, : self.rows]
        return keys.transpose(1, 2), values.transpose(1, 2)
