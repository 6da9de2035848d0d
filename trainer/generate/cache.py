"""The keys and values of sequences under way, in memory that is allocated once.

Each sequence has a slot with a row for every position, and one row more, the spare: what is computed for the sake of a
rectangular batch (padding, slots without a sequence) is written there.  `Cache.look_back` gives `Decoder.forward` what it
needs for some tokens of some slots.  Which tokens these are is `trainer.generate.batch`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.models.llama.config import ModelConfig
from trainer.models.llama.model import rotations

SPAN = 64
"""Attention looks at a multiple of so many rows, so that the shapes of its operands change seldom."""


class Cache:
    """Keys and values, each (layers, slots, rows, key heads, width of a head).

    spare: the position of the row that holds nothing; `length` positions come before it.
    """

    def __init__(self, config: ModelConfig, slots: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.spare = length
        shape = (config.layers, slots, length + 1, config.kv_heads, config.head_width)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)  # never without a value: NaN times 0 is NaN
        self.values = torch.zeros_like(self.keys)
        self._cos, self._sin = rotations(config, length + 1, device)
        self._group = config.heads // config.kv_heads
        self._columns = torch.arange(length + 1, device=device)

    def look_back(self, slots: Tensor | int, positions_bt: Tensor, span: int) -> LookBack:
        """What tokens at these positions attend to.

        slots: int64 (B,), or the number B of the first slots, which are read where they lie and not copied.
        positions_bt: int64 (B, T); `spare` for tokens that do not count.  span: above all positions that count.
        """
        rows = min(-(-span // SPAN) * SPAN, self.spare + 1)
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
        """Forget everything, so that numbers of other weights, which may be no numbers, do no harm."""
        self.keys.zero_()
        self.values.zero_()


@dataclass(frozen=True)
class LookBack:
    """A `trainer.models.llama.model.Past`.  cells: rows (of all slots in one line) for the tokens' own keys and values."""

    cache: Cache
    slots: Tensor | int
    rows: int
    cells: Tensor
    rotations: tuple[Tensor, Tensor]
    mask: Tensor

    def extend(self, layer: int, key_bhtd: Tensor, value_bhtd: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the tokens' keys and values; return those of the rows looked at, (B, key heads, rows, width of a head)."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        for kept, new in ((keys, key_bhtd), (values, value_bhtd)):
            kept.flatten(0, 1).index_copy_(0, self.cells, new.transpose(1, 2).flatten(0, 1))
        if isinstance(self.slots, int):
            keys, values = keys[: self.slots, : self.rows], values[: self.slots, : self.rows]
        else:
            keys, values = keys[self.slots, : self.rows], values[self.slots, : self.rows]
        return keys.transpose(1, 2), values.transpose(1, 2)
