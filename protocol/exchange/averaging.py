"""The average of a chunk, as its owner computes it, and the examination of every chunk that arrives.

The functions that read whole chunks are for worker threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.aggregate import Rule, aggregate
from kernels.codec import is_sane
from kernels.layout import Layout
from protocol.exchange.buffers import BufferPool, WaitingParts
from protocol.exchange.chunks import OwnParts, Results
from protocol.exchange.effects import Reduce
from protocol.exchange.events import Averaged
from protocol.exchange.machine import ExchangeMachine
from protocol.network.session import Session
from protocol.offload import Offload
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.masks import mask_of
from protocol.wire.messages import ChunkEntry, ChunkResult


class Averager:
    """Averages the chunks that we own, signs the averages and puts them among the results."""

    def __init__(
        self,
        machine: ExchangeMachine,
        session: Session,
        layout: Layout,
        own: OwnParts,
        parts: WaitingParts,
        results: Results,
        pool: BufferPool,
        offload: Offload,
        rule: Rule,
    ) -> None:
        self._machine, self._session, self._layout = machine, session, layout
        self._own, self._parts, self._results, self._pool = own, parts, results, pool
        self._offload, self._rule = offload, rule

    async def reduce(self, effect: Reduce) -> Averaged | None:
        """Average one chunk; None when a result from somebody else came first."""
        machine, chunk, span = self._machine, effect.chunk, self._layout[effect.chunk]
        if chunk in machine.entries:
            self._parts.drop(chunk)
            return None
        members = [machine.members[index] for index in effect.members]
        parts = [self._own[chunk] if peer == machine.me else self._parts[chunk, peer] for peer in members]
        weights = [machine.plan.members[index].tokens for index in effect.members]
        mean = self._pool.take(span.size)
        name = await self._offload(average, self._rule, parts, weights, span.count, mean)
        entry = entry_of(name, effect.members, len(machine.members))
        self._parts.drop(chunk)
        if chunk in machine.entries or self._results.released:
            return None
        self._results.put(chunk, mean, self._session.seal(ChunkResult(plan=machine.name, chunk=chunk, entry=entry)))
        self._pool.give(mean)
        return Averaged(chunk, entry)


def average(rule: Rule, parts: Sequence[memoryview], weights: Sequence[int], count: int, into: memoryview) -> Hash:
    """Average `parts` of `count` values into `into`; returns its hash.  weights: the tokens of their members."""
    aggregate(rule, parts, weights, count, into)
    return chunk_hash(into)


def examine(count: int, data: memoryview) -> tuple[Hash, bool]:
    """The hash of a chunk of `count` values, and whether all of them are finite."""
    return chunk_hash(data), is_sane(data, count)


def entry_of(hash: Hash, members: Sequence[int], count: int) -> ChunkEntry:
    """The index entry of a chunk averaged over these members (indices in a plan of `count` members)."""
    return ChunkEntry(hash=hash, mask=mask_of(members, count))
