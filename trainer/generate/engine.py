"""Built-in generator, which decodes many sequences at a time, each in a slot.

A waiting request gets a slot as soon as one is free. Its prompt is computed in blocks between the steps of the other
sequences (chunked prefill), and the noise of its own key chooses its tokens. So neither the batch nor the order of requests
changes the output, beyond the rounding of sums. When no request waits, the remaining sequences move to the lowest slots, so
that a step computes no more rows than there are sequences.

Multi-turn: at the end of the model's turn, `reply` may continue the sequence with the environment's tokens. These tokens are
part of the output, marked as not made by the model, and the model continues in the same slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from protocol.formats.model import ModelConfig
from trainer.device import is_gpu
from trainer.generate.generator import MOST_END_TOKENS, Completion, Generator, ProveAll, Reply, Request, Slots
from trainer.generate.sampling import choose
from trainer.models.llama.cache import Cache
from trainer.models.llama.model import Decoder, FrozenBase, trained_layout

# ------------------------------------------------------------------------------------------------------------------------
# Batch of sequences that are computed together. All their state is on the device, and two passes advance them.
#
# Each sequence has a slot, which holds its tokens (including the prompt and the environment's replies) at their positions,
# its newest position, its key, its last position, and the tokens that end a turn. `feed` computes known tokens (a prompt),
# many at a time, and chooses the first token after them. `step` computes the newest token of each running sequence and
# chooses the next. A step's shapes do not depend on which sequences run, and a step needs nothing from the host. The host
# reads from `progress` which turns have ended.
#
# `Engine` assigns slots to requests, and ends or continues a sequence at the end of a turn.


NO_TOKEN = -1
MOST_RECORDED = 64
"""Number of shapes for which a GPU keeps a recorded step; one more shape makes it forget all of them."""


class Recorded:
    """Steps that a GPU replays, because launching their kernels one by one takes longer than a small model computes.

    The first step of a new shape runs unrecorded; the second is recorded. All tensors that a step reads or writes keep their
    places.
    """

    def __init__(self) -> None:
        self._graphs: dict[tuple[int, int, float], torch.cuda.CUDAGraph | None] = {}
        self._pool = (
            torch.cuda.graph_pool_handle()
        )  # shared, because only one step runs at a time, and none leaves data in it

    def run(self, shape: tuple[int, int, float], step: Callable[[], None]) -> None:
        """Run a step of this shape."""
        if shape not in self._graphs:
            if len(self._graphs) == MOST_RECORDED:
                self._graphs.clear()
            self._graphs[shape] = None
            return step()
        graph = self._graphs[shape] or self._record(step)
        self._graphs[shape] = graph
        graph.replay()

    def _record(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                step()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        return graph


@dataclass(frozen=True)
class Piece:
    """Piece of known tokens to compute: positions `first` to `stop` - 1 of a slot.

    is_last: True if they are the sequence's last, after which the model chooses the token at `stop`.
    """

    slot: int
    first: int
    stop: int
    is_last: bool = False


class Batch:
    """Batch of sequences that are computed together, one in each slot.

    tokens: int64 (slots, rows).  hidden: bf16 (slots, rows, dim), the final hidden state of each computed position.
    position: int64 (slots,), position of the newest token, which is not computed yet. running: bool (slots,), true during a
    turn of the model. Each slot has one row for each position, then a spare row for tokens that do not count
    (`Cache.spare`).
    """

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        dtype: torch.dtype,
        slots: Slots,
        base: FrozenBase | None = None,
    ) -> None:
        """Allocate memory.  base: frozen weights, if the parameters are factors beside them; in the precision `dtype`."""
        assert base is None or base.dtype == dtype
        last = trained_layout(config, base)[-1]
        flat = torch.zeros(last.offset + last.count, dtype=dtype, device=device)
        self.model = Decoder(config, device, flat, base)
        count, rows = slots.count, slots.length + 1
        self.cache = Cache(config, count, slots.length, dtype, device)
        self.tokens = torch.zeros(count, rows, dtype=torch.int64, device=device)
        self.hidden = torch.zeros(count, rows, config.dim, dtype=torch.bfloat16, device=device)
        self.position = torch.zeros(count, dtype=torch.int64, device=device)
        self.running = torch.zeros(count, dtype=torch.bool, device=device)
        self._keys = torch.zeros(count, dtype=torch.int64, device=device)
        self._last = torch.zeros(count, dtype=torch.int64, device=device)
        self._ends = torch.full((count, MOST_END_TOKENS), NO_TOKEN, device=device)
        records = device.type == "cuda" and not self.model.prefetches  # a recorded step would not copy
        self._recorded = Recorded() if records else None

    def fill(self, blocks: Iterable[Tensor]) -> None:
        """Copy parameters of any precision from any device, which come in blocks, in order.  No slot may hold a sequence."""
        at = 0
        for block in blocks:
            self.model.flat[at : at + len(block)].copy_(block)
            at += len(block)
        self.cache.clear()

    def begin(self, slot: int, prompt: Sequence[int], key: int, room: int, ends: Sequence[int]) -> None:
        """Put a sequence into a slot, without running it.  room: as in `append`."""
        self._keys[slot] = key
        self._ends[slot] = torch.tensor([*ends, *[NO_TOKEN] * (MOST_END_TOKENS - len(ends))])
        self.append(slot, 0, prompt, room)

    def append(self, slot: int, first: int, tokens: Sequence[int], room: int) -> None:
        """Continue a sequence, from position `first`, with tokens that the model did not choose.

        room: maximum number of tokens of the turn that follows.
        """
        self._last[slot] = first + len(tokens) + room - 1
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

    def feed(self, pieces: Sequence[Piece], temperature: float = 1.0) -> None:
        """Compute known tokens of some slots, one piece for each slot, and choose the first token after each last piece.

        The sequence then runs, unless this token ends it.
        """
        numbers = torch.tensor([(piece.slot, piece.first, piece.stop) for piece in pieces]).to(self.tokens.device)
        slots, firsts, stops = numbers.unbind(dim=1)
        width = max(piece.stop - piece.first for piece in pieces)
        positions_bt = firsts[:, None] + torch.arange(width, device=self.tokens.device)
        positions_bt = torch.where(positions_bt < stops[:, None], positions_bt, self.cache.spare)
        past = self.cache.look_back(slots, positions_bt, max(piece.stop for piece in pieces))
        hidden_btd = self.model(self.tokens[slots].gather(1, positions_bt), past=past)
        self.hidden.flatten(0, 1).index_copy_(0, past.cells, hidden_btd.flatten(0, 1).bfloat16())
        if last := [number for number, piece in enumerate(pieces) if piece.is_last]:
            at, slots = stops[last] - 1, slots[last]
            following, chosen, ended = self._chosen(slots, hidden_btd[last, at - firsts[last]], at, temperature)
            self.tokens[slots, following] = chosen
            self.position[slots], self.running[slots] = following, ~ended

    def step(self, slots: int, span: int, temperature: float) -> None:
        """Choose the next token of each running sequence in the first `slots` slots.

        span: a number greater than all their positions.
        """
        if self._recorded is None:
            return self._step(slots, span, temperature)
        rows = self.cache.rows(span)
        self._recorded.run((slots, rows, temperature), lambda: self._step(slots, rows, temperature))

    def _step(self, slots: int, span: int, temperature: float) -> None:
        spare, running = self.cache.spare, self.running[:slots]
        at = torch.where(running, self.position[:slots], spare)
        past = self.cache.look_back(slots, at[:, None], span)
        hidden_bd = self.model(self.tokens[:slots].gather(1, at[:, None]), past=past)[:, 0]
        self.hidden.flatten(0, 1).index_copy_(0, past.cells, hidden_bd.bfloat16())
        following, chosen, ended = self._chosen(slice(slots), hidden_bd, at, temperature)
        self.tokens[:slots].scatter_(1, following[:, None], chosen[:, None])
        self.position[:slots] = torch.where(running, following, self.position[:slots])
        running.logical_and_(~ended)

    def _chosen(
        self, slots: slice | Tensor, hidden_bd: Tensor, at_b: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the positions after `at_b`, the tokens chosen there, and true for tokens that end a turn, each (B,)."""
        logits_bv = F.linear(hidden_bd.to(self.model.flat.dtype), self.model.output_weight)
        chosen = self.choose(logits_bv, self._keys[slots], at_b + 1, temperature)
        following = (at_b + 1).clamp_(max=self.cache.spare)
        ended = (chosen[:, None] == self._ends[slots]).any(dim=1) | (following >= self._last[slots])
        return following, chosen, ended

    def choose(self, logits_bv: Tensor, keys_b: Tensor, positions_b: Tensor, temperature: float) -> Tensor:
        """Return the tokens at `positions_b`, int64 (B,).  Benchmarks of dishonest sampling override this method."""
        return choose(logits_bv, keys_b, positions_b, temperature)

    def progress(self, slots: int) -> tuple[list[int], list[bool]]:
        """Return the positions of the first `slots` slots, and True for each slot that runs.  Waits for the device."""
        both = torch.stack([self.position[:slots], self.running[:slots].long()]).tolist()
        return both[0], [bool(runs) for runs in both[1]]


# ------------------------------------------------------------------------------------------------------------------------


PREFILL_TOKENS = 1024
"""Known tokens computed between two steps of the running sequences; at least one for each sequence with known tokens
left."""
GPU_STEPS = 8
"""Steps on a GPU between two checks for ended turns; meanwhile the host only queues work."""
CPU_STEPS = 1


@dataclass
class _Sequence:
    """Request in a slot.

    tokens: number of known tokens.  fed: number of computed tokens. Both are the numbers known to the host.

    unmade: spans of the output that the environment wrote.
    """

    request: Request
    tokens: int
    fed: int = 0
    running: bool = False
    unmade: list[slice] = field(default_factory=list)


class Engine(Generator):
    """Built-in generator.  steps, row_steps: numbers of decoding steps, and of rows computed in them.

    prefill_tokens: known tokens computed at a time.  steps_at_once: steps between two checks for ended turns; 0 for the
    device's default.
    """

    prefill_tokens = PREFILL_TOKENS
    steps_at_once = 0

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        slots: Slots,
        *,
        dtype: torch.dtype = torch.float32,
        prove_all: ProveAll | None = None,
        reply: Reply | None = None,
        base: FrozenBase | None = None,
    ) -> None:
        """Allocate memory for the slots.  dtype: of weights and products.  base: as in `Batch`.

        prove_all: proves the hidden states of sequences; if None, completions carry the hidden states instead.
        """
        super().__init__(config, slots, prove_all, reply)
        self._batch = Batch(config, device, dtype, slots, base)
        self._steps_at_once = self.steps_at_once or (GPU_STEPS if is_gpu(device) else CPU_STEPS)
        self._slots: list[_Sequence | None] = [None] * slots.count
        self.steps = self.row_steps = 0

    def load(self, flat: Tensor) -> None:
        """Load parameters as `Generator.load` does."""
        count = self._batch.model.count
        if flat.shape != (count,):
            raise ValueError(f"the model has {count} parameters, not {tuple(flat.shape)}")
        self.fill([flat])

    def fill(self, blocks: Iterable[Tensor]) -> None:
        """Load parameters that come in blocks, in order, without a second copy of them in memory.

        Raises ValueError while a request waits or runs.
        """
        self._check_idle()
        self._batch.fill(blocks)
        self._loaded = True

    def output_of(self, id: int) -> tuple[int, ...]:
        """Return the output so far of the request with this number; empty if it does not run."""
        slot = self._slot_of(id)
        sequence = None if slot is None else self._slots[slot]
        return () if slot is None or sequence is None else self._output(slot, sequence)[0]

    def stop(self, id: int) -> None:
        """Free the slot of the request with this number, if it runs; its completion is never returned."""
        slot = self._slot_of(id)
        if slot is not None:
            self._batch.running[slot] = False
            self._slots[slot] = None

    def close(self) -> None:
        """Free the memory."""
        del self._batch

    @torch.no_grad()
    def advance(self) -> list[Completion]:
        """Compute one block of known tokens, and some steps of the running sequences; return ended completions."""
        self._check_loaded()
        while self._waiting and None in self._slots:
            self._begin(self._slots.index(None), self._waiting.popleft())
        run = any(sequence and sequence.running for sequence in self._slots)
        self._feed()
        while None in self._slots and any(self._slots[(free := self._slots.index(None)) :]):  # the last to the lowest slots
            source = max(number for number, sequence in enumerate(self._slots) if sequence)
            moved = self._slots[source]
            assert moved is not None
            self._batch.move(source, free, moved.tokens)
            self._slots[free], self._slots[source] = moved, None
        slots = max((number for number, sequence in enumerate(self._slots) if sequence), default=-1) + 1
        if run:
            span = max(sequence.tokens for sequence in self._slots if sequence and sequence.running)
            for step in range(self._steps_at_once):
                self._batch.step(slots, min(span + step, self._capacity.length), self.temperature)
            self.steps += self._steps_at_once
            self.row_steps += self._steps_at_once * slots
        if slots:
            self._end(slots)
        return self._proven()

    @property
    def _running(self) -> int:
        """Number of requests that have a slot."""
        return len(self._slots) - self._slots.count(None)

    def _slot_of(self, id: int) -> int | None:
        """Return the slot of the request with this number; None if it has no slot."""
        return next((slot for slot, each in enumerate(self._slots) if each and each.request.id == id), None)

    def _begin(self, slot: int, request: Request) -> None:
        self._slots[slot] = _Sequence(request, len(request.prompt))
        self._batch.begin(slot, request.prompt, request.key, request.turn_room(0), request.end_tokens)

    def _feed(self) -> None:
        """Compute a block of known tokens, and the first token after the last of them."""
        waiting = [(slot, sequence) for slot, sequence in enumerate(self._slots) if sequence and not sequence.running]
        if not waiting:
            return
        width = max(1, self.prefill_tokens // len(waiting))
        ends = [min(each.fed + width, each.tokens) for _, each in waiting]
        pieces = [Piece(slot, each.fed, end, end == each.tokens) for (slot, each), end in zip(waiting, ends, strict=True)]
        self._batch.feed(pieces, self.temperature)
        for piece, (_, sequence) in zip(pieces, waiting, strict=True):
            sequence.fed = piece.stop
            sequence.running = piece.is_last
            sequence.tokens += piece.is_last

    def _end(self, slots: int) -> None:
        """End or continue the sequences whose turn has ended."""
        positions, running = self._batch.progress(slots)
        for sequence, position in zip(self._slots[:slots], positions, strict=True):
            if sequence and sequence.running:
                sequence.tokens, sequence.fed = position + 1, position
        for slot, runs in enumerate(running):
            sequence = self._slots[slot]
            if runs or sequence is None or not sequence.running:
                continue
            output, made = self._output(slot, sequence)
            said = self._continuation(sequence.request, output, made)
            if said is None:
                first = len(sequence.request.prompt) - 1
                self._hold(sequence.request, output, made, self._batch.hidden[slot, first : first + len(output)])
                self._slots[slot] = None
            else:
                begin = sequence.tokens - len(sequence.request.prompt)
                sequence.unmade.append(slice(begin, begin + len(said)))
                self._batch.append(slot, sequence.tokens, said, sequence.request.turn_room(begin + len(said)))
                sequence.tokens += len(said)
                sequence.running = False  # until these tokens are computed

    def _output(self, slot: int, sequence: _Sequence) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """Return the output so far, and for each token True if the model chose it."""
        output = self._batch.tokens[slot, len(sequence.request.prompt) : sequence.tokens].tolist()
        made = [True] * len(output)
        for span in sequence.unmade:
            made[span] = [False] * len(made[span])
        return tuple(output), tuple(made)
