"""Members that lie in the exchange: real nodes that send less than they owe, or other things."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import numpy as np
import trio

from kernels.codecs.format import HEADER_BYTES, from_bf16, to_bf16
from kernels.codecs.ladder import INT4
from protocol.allreduce import runner
from protocol.allreduce.buffers import PART_BUFFERS
from protocol.allreduce.machine import ExchangeEffect, SendPart, SendResult
from protocol.allreduce.runner import ExchangeRunner, PushHeader, read_header
from protocol.node import exchanges
from protocol.offload import Offload
from protocol.transport.interface import NetworkError
from protocol.wire.hashes import chunk_hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import ChunkResult, pack, unpack
from tests.simulation.determinism import inline


class KeepingBack(ExchangeRunner):
    """Sends nothing of the kinds in `kept_back`."""

    kept_back: tuple[type[ExchangeEffect], ...] = (SendPart, SendResult)

    def _perform(self, effect: ExchangeEffect) -> None:
        if not isinstance(effect, self.kept_back):
            super()._perform(effect)


class KeepingParts(KeepingBack):
    """Averages, but gives nothing to average."""

    kept_back = (SendPart,)


class KeepingResults(KeepingBack):
    """Gives its parts, and no averages."""

    kept_back = (SendResult,)


class Noisy(ExchangeRunner):
    """Does all that it should, and pushes worthless parts so that it is heard, one every `every_s`, or so many at a time."""

    every_s = 2.0
    at_a_time = 1

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for peer in self.machine.others:
                for number in range(self.at_a_time):
                    nursery.start_soon(self._go_on_pushing, peer, number * self.every_s / self.at_a_time)
            await super().run()

    async def _go_on_pushing(self, peer: PeerId, from_s: float) -> None:
        await trio.sleep(from_s)
        while True:
            proof, data = self._push()
            header = PushHeader(
                plan=self.machine.name, fragment=self.machine.plan.fragment, chunk=0, proof=proof, statement=None
            )
            with suppress(NetworkError):
                await self._session.network.push(peer, header.encode(), data, timeout_s=60)
            await trio.sleep(self.every_s)

    def _push(self) -> tuple[list[bytes], memoryview]:
        return [], memoryview(bytearray(self._buffers.own.layouts.contribution[0].size))


class Repeating(Noisy):
    """Pushes its true part of the first chunk again and again."""

    def _push(self) -> tuple[list[bytes], memoryview]:
        return self._sender._own.proof(0), self._sender._own[0]


class Bogus(Noisy, KeepingBack):
    """Withholds everything, and pushes worthless parts (simK)."""


class Crowding(Bogus):
    """Pushes more of them at a time than there is room for, so that one always waits."""

    every_s, at_a_time = 15.0, 3 * PART_BUFFERS


class Delaying(ExchangeRunner):
    """Gives all it owes, each thing `part_s` or `result_s` after it should.  to: whom parts come late to; None for all."""

    part_s = 4.5
    result_s = 0.0

    def _perform(self, effect: ExchangeEffect) -> None:
        delay_s = 0.0
        if isinstance(effect, SendPart) and self._is_deceived(effect.to):
            delay_s = self.part_s
        elif isinstance(effect, SendResult):
            delay_s = self.result_s
        if not delay_s:
            super()._perform(effect)
        else:
            self._tasks.start(self._later, effect, delay_s)

    def _is_deceived(self, peer: PeerId) -> bool:
        return True

    async def _later(self, effect: ExchangeEffect, delay_s: float) -> None:
        await trio.sleep(delay_s)
        super()._perform(effect)


class DelayingAverages(Delaying):
    """Gives its parts in time, and its averages late."""

    part_s, result_s = 0.0, 4.5


class DelayingAveragesLess(DelayingAverages):
    """The same, by so little that no single exchange suffers much."""

    result_s = 1.9


class DelayingSome(Delaying):
    """Is late for one member after the other."""

    def _is_deceived(self, peer: PeerId) -> bool:
        others = sorted(self.machine.others)
        return peer == others[self.machine.plan.round % len(others)]


class Trickling(ExchangeRunner):
    """Sends what it owes one by one, a moment before it would be given up."""

    every_s = 4.5

    def _perform(self, effect: ExchangeEffect) -> None:
        if not isinstance(effect, SendPart | SendResult):
            super()._perform(effect)
        else:
            self._late = getattr(self, "_late", 0) + 1
            self._tasks.start(self._later, effect, self._late * self.every_s)

    async def _later(self, effect: ExchangeEffect, delay_s: float) -> None:
        await trio.sleep(delay_s)
        super()._perform(effect)


class Besieging(Trickling):
    """Keeps all parts from one member, and gives it its averages one by one, so that the others find it late."""

    every_s = 9.0
    victim: PeerId

    def _perform(self, effect: ExchangeEffect) -> None:
        if not isinstance(effect, SendPart | SendResult) or effect.to != self.victim:
            ExchangeRunner._perform(self, effect)
        elif isinstance(effect, SendResult):
            super()._perform(effect)


@contextmanager
def exchanging(make: Callable[..., ExchangeRunner], liars: Collection[PeerId]) -> Iterator[None]:
    """Exchanges that these peers begin within are of this kind."""
    honest: Any = getattr(exchanges, "ExchangeRunner")  # noqa: B009

    def begin(**arguments: Any) -> ExchangeRunner:
        kind = make if arguments["session"].me in liars else honest
        return kind(**arguments)  # type: ignore[no-any-return]

    with patch.object(exchanges, "ExchangeRunner", begin):
        yield


class TwoFaced:
    """What a network pushes: averages go out twice, different ones to different peers, each truly signed.

    Installed on the network of a node.
    """

    def __init__(self, network: Any, identity: Identity, run: Any, deceived: Collection[PeerId]) -> None:
        self._push, self._identity, self._run, self._deceived = network.push, identity, run, deceived
        network.push = self.push

    async def push(self, peer: PeerId, header: bytes, data: memoryview, *, timeout_s: float) -> None:
        """Instead of the network's."""
        opened = read_header(header)
        if peer in self._deceived and opened.statement is not None:
            signer, body, _ = unpack(opened.statement, self._run)
            if signer == self._identity.peer_id and isinstance(body, ChunkResult):
                header, data = self._other(opened, body, data)
        await self._push(peer, header, data, timeout_s=timeout_s)

    def _other(self, header: PushHeader, body: ChunkResult, data: memoryview) -> tuple[bytes, memoryview]:
        changed = memoryview(bytearray(data))
        changed[-1] = changed[-1] ^ 1
        entry = body.entry.model_copy(update={"hash": chunk_hash(changed)})
        statement = pack(self._identity, self._run, body.model_copy(update={"entry": entry})).raw
        return header.model_copy(update={"statement": statement}).encode(), changed


# -- wrong averages ---------------------------------------------------------------------------------------------------------

Corrupt = Callable[[Any], None]


def blow_up(data: Any) -> None:
    """Every value of an average in int4 times 1000."""
    blocks = -(-(len(data) - HEADER_BYTES) // (2 + INT4.block // 2))
    scales = np.frombuffer(data, np.uint16, count=blocks, offset=HEADER_BYTES)
    scales[:] = to_bf16(np.minimum(from_bf16(scales) * np.float32(1000), INT4.LARGEST_SCALE))


def flip_one(data: Any) -> None:
    """One value of an average, a little."""
    codes = np.frombuffer(data, np.int8)
    codes[-1] = codes[-1] - 1 if codes[-1] > 0 else codes[-1] + 1


def averaging_wrong(corrupt: Corrupt) -> Offload:
    """For a seat: what it averages as an owner is spoilt before it is signed."""

    async def offload(function: Any, *arguments: Any) -> Any:
        answer = await inline(function, *arguments)
        if function is runner.average:
            corrupt(arguments[-1])
            return chunk_hash(arguments[-1])
        return answer

    return offload
