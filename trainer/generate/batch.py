"""Batch of sequences that are computed together: all of their state on the device, and the two passes that advance them.

Each sequence has a slot, which holds its tokens (including prompt and the environment's replies) at their positions, its
newest position, its key, its last position, and the tokens that end a turn.  `feed` computes known tokens (a prompt), many
at a time.  `step` computes the newest token of each running sequence and chooses the next.  A step's shapes do not depend on
which sequences run, and it needs nothing from the host; the host reads from `progress` which turns have ended.

`trainer.generate.engine` assigns slots to requests, and decides what happens at the end of a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.generate.generator import MOST_END_TOKENS
from trainer.generate.sampling import choose
from trainer.models.llama.config import ModelConfig
from trainer.models.llama.model import Decoder, rotations

# ------------------------------------------------------------------------------------------------------------------------
# Cache of the keys and values of unfinished sequences, in memory that is allocated once.
#
# Each sequence has a slot with a row for every position, and one more, the spare row, which takes the results that only
# fill up a rectangular batch (padding, slots without a sequence).  `Cache.look_back` gives `Decoder.forward` the past of
# some tokens of some slots; `Batch` chooses these tokens.


SPAN = 64
"""Rows by which the span of attention grows, so that the shapes of its operands change seldom."""


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

    def look_back(self, slots: Tensor | int, positions_bt: Tensor, span: int) -> LookBack:
        """Return the past that tokens at these positions attend to.

        slots: int64 (B,), or the number B of the first slots, which are read in place and not copied.
        positions_bt: int64 (B, T); `spare` for tokens that do not count.  span: greater than all positions that count.
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
        """Zero everything, so that results of other weights, which may be NaN, do no harm."""
        self.keys.zero_()
        self.values.zero_()


@dataclass(frozen=True)
class LookBack:
    """Past (`trainer.models.llama.model.Past`) in a cache.  cells: rows, over all slots, of the tokens' keys and values."""

    cache: Cache
    slots: Tensor | int
    rows: int
    cells: Tensor
    rotations: tuple[Tensor, Tensor]
    mask: Tensor

    def extend(self, layer: int, key_bhtd: Tensor, value_bhtd: Tensor) -> tuple[Tensor, Tensor]:
        """Store the tokens' keys and values; return the attended rows, (B, key heads, rows, width of a head)."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        for kept, new in ((keys, key_bhtd), (values, value_bhtd)):
            kept.flatten(0, 1).index_copy_(0, self.cells, new.transpose(1, 2).flatten(0, 1))
        if isinstance(self.slots, int):
            keys, values = keys[: self.slots, : self.rows], values[: self.slots, : self.rows]
        else:
            keys, values = keys[self.slots, : self.rows], values[self.slots, : self.rows]
        return keys.transpose(1, 2), values.transpose(1, 2)


# ------------------------------------------------------------------------------------------------------------------------


NO_TOKEN = -1


@dataclass(frozen=True)
class Piece:
    """Piece of known tokens to be computed: positions first to stop - 1 of a slot."""

    slot: int
    first: int
    stop: int


def batch_bytes(config: ModelConfig, slots: int, length: int, dtype: torch.dtype) -> int:
    """Return the memory of a `Batch` in bytes, without the temporary memory of a pass."""
    rows = slots * (length + 1)
    cache = 2 * config.layers * rows * config.kv_width * dtype.itemsize
    return config.parameters * dtype.itemsize + cache + rows * (8 + 2 * config.dim)


class Batch:
    """Batch of `slots` sequences of at most `length` tokens.

    tokens: int64 (slots, rows).  hidden: bf16 (slots, rows, dim), the final hidden state of each computed position.
    position: int64 (slots,), of the newest token, which is not computed yet.  running: bool (slots,), true within a turn of
    the model.  Rows are positions, then a spare row for tokens that do not count (`Cache.spare`).
    """

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype, slots: int, length: int) -> None:
        self.model = Decoder(config, device, torch.zeros(config.parameters, dtype=dtype, device=device))
        self.cache = Cache(config, slots, length, dtype, device)
        self.tokens = torch.zeros(slots, length + 1, dtype=torch.int64, device=device)
        self.hidden = torch.zeros(slots, length + 1, config.dim, dtype=torch.bfloat16, device=device)
        self.position = torch.zeros(slots, dtype=torch.int64, device=device)
        self.running = torch.zeros(slots, dtype=torch.bool, device=device)
        self._keys = torch.zeros(slots, dtype=torch.int64, device=device)
        self._last = torch.zeros(slots, dtype=torch.int64, device=device)
        self._ends = torch.full((slots, MOST_END_TOKENS), NO_TOKEN, device=device)

    def load(self, flat: Tensor) -> None:
        """Copy parameters (n) of any precision from any device.  Do not call while there are sequences."""
        self.model.flat.copy_(flat)
        self.cache.clear()

    def begin(self, slot: int, prompt: Sequence[int], key: int, last: int, ends: Sequence[int]) -> None:
        """Put a sequence into a slot, without running it.  last: the position where it ends at the latest."""
        self._keys[slot], self._last[slot] = key, last
        self._ends[slot] = torch.tensor([*ends, *[NO_TOKEN] * (MOST_END_TOKENS - len(ends))])
        self.append(slot, 0, prompt)

    def append(self, slot: int, first: int, tokens: Sequence[int]) -> None:
        """Continue with tokens that the model did not choose, from position `first` on."""
        self.tokens[slot, first : first + len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        self.position[slot] = first + len(tokens) - 1

    def move(self, source: int, target: int, rows: int) -> None:
        """Copy a sequence of at most `rows` tokens to another slot, and stop the old one."""
        self.cache.move(source, target, rows)
        for part in (self.tokens, self.hidden):
            part[target, :rows] = part[source, :rows]
        for part in (self.position, self._keys, self._last, self._ends, self.running):
            part[target] = part[source]
        self.running[source] = False

    def feed(self, pieces: Sequence[Piece]) -> None:
        """Compute known tokens of some slots, one piece each."""
        numbers = torch.tensor([(piece.slot, piece.first, piece.stop) for piece in pieces]).to(self.tokens.device)
        slots, firsts, stops = numbers.unbind(dim=1)
        width = max(piece.stop - piece.first for piece in pieces)
        positions_bt = firsts[:, None] + torch.arange(width, device=self.tokens.device)
        positions_bt = torch.where(positions_bt < stops[:, None], positions_bt, self.cache.spare)
        past = self.cache.look_back(slots, positions_bt, max(piece.stop for piece in pieces))
        hidden_btd = self.model(self.tokens[slots].gather(1, positions_bt), past=past)
        self.hidden.flatten(0, 1).index_copy_(0, past.cells, hidden_btd.flatten(0, 1).bfloat16())

    def step(self, slots: int, span: int, temperature: float) -> None:
        """Choose the next token of each running sequence in the first `slots` slots.  span: above all their positions."""
        spare, running = self.cache.spare, self.running[:slots]
        at = torch.where(running, self.position[:slots], spare)
        past = self.cache.look_back(slots, at[:, None], span)
        hidden_bd = self.model(self.tokens[:slots].gather(1, at[:, None]), past=past)[:, 0]
        self.hidden.flatten(0, 1).index_copy_(0, past.cells, hidden_bd.bfloat16())
        logits_bv = F.linear(hidden_bd.to(self.model.flat.dtype), self.model.output_weight)
        chosen = self.choose(logits_bv, self._keys[:slots], at + 1, temperature)
        following = (at + 1).clamp_(max=spare)
        self.tokens[:slots].scatter_(1, following[:, None], chosen[:, None])
        self.position[:slots] = torch.where(running, following, self.position[:slots])
        ended = (chosen[:, None] == self._ends[:slots]).any(dim=1) | (following >= self._last[:slots])
        running.logical_and_(~ended)

    def choose(self, logits_bv: Tensor, keys_b: Tensor, positions_b: Tensor, temperature: float) -> Tensor:
        """Return the tokens at `positions_b`, int64 (B,).  Measurements of dishonest sampling override this method."""
        return choose(logits_bv, keys_b, positions_b, temperature)

    def progress(self, slots: int) -> tuple[list[int], list[bool]]:
        """Return the positions of the first `slots` slots, and for each True if it runs.  Waits for the device."""
        both = torch.stack([self.position[:slots], self.running[:slots].long()]).tolist()
        return both[0], [bool(runs) for runs in both[1]]
