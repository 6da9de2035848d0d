"""Price of each question at a peer that answers, and the delay of a member's question while strangers flood the peer.

`python -m benchmarks.questions [--only KIND ...] [--strangers 1 32] [--seconds 4] [--json]` starts a seed in a process of
its own: the node and the network of the product, with 64 records of 16 members and 256 chunks, a checkpoint of 9000 chunks,
and a proof of 60 MiB.  A member of its records asks for `tips` ten times a second.  Strangers, in a third process, keep 16
questions each under way, of one kind at a time, and read all answers.  Processor times include the transport's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import trio

from benchmarks.json_lines import hear, say
from protocol.audit.evidence import evidence_hash
from protocol.chain.outer_state import OuterState
from protocol.chain.records import genesis_tip, record_hash
from protocol.chain.replica import Replica
from protocol.chain.results import CheckpointName
from protocol.chain.store import Store
from protocol.disk import Disk
from protocol.node.node import Node
from protocol.run.admission import make_hello
from protocol.run.manifest import SignedManifest
from protocol.run.settings import NodeSettings
from protocol.transport.interface import NetworkError, Session
from protocol.transport.network import Libp2pNetwork, open_network
from protocol.wire.hashes import ZERO_HASH, Hash, tree_root
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Certificate, ChunkEntry, Commit, Member, Record, Signature
from protocol.wire.presence import Role
from protocol.wire.questions import (
    TipsRequest,
)
from tests.attacks.cost import watch_loop
from tests.attacks.questions import dear_questions
from tests.protocol.transport.recorder import LOOPBACK, Recorder, stack
from tests.simulation.world import simulated_run

RECORDS, MEMBERS, CHUNKS, LEAVES, PROOF_BYTES = 64, 16, 256, 9000, 60 << 20
UNDER_WAY = 16
"""Questions of one stranger at a time, as many as a peer accepts."""
ASK_EVERY_S, TIMEOUT_S = 0.1, 20.0
MEMBER = Identity.from_seed(b"\x11" * 32)


def the_run() -> SignedManifest:
    """Return the run of which the peer holds records."""
    return simulated_run()


@dataclass(frozen=True)
class Names:
    """Names of the data at the peer."""

    checkpoint: Hash
    proof: Hash


def fill(store: Store, run: Hash) -> Names:
    """Write records without votes, a checkpoint and a proof, all as large as real ones."""
    ids = sorted([MEMBER.peer_id, *(Identity.from_seed(bytes([n]) * 32).peer_id for n in range(MEMBERS - 1))])
    mask, previous = b"\xff" * (MEMBERS // 8), genesis_tip(run)
    for round in range(RECORDS):
        members = [
            Member(
                peer=peer,
                incarnation=1,
                serial=round,
                tokens=10,
                steps=5,
                loss=1.0,
                norm=1.0,
                root=os.urandom(32),
                signature=os.urandom(64),
            )
            for peer in ids
        ]
        record = Record(
            round=round,
            fragment=round % 2,
            previous=previous,
            members=members,
            codec="int4",
            result_root=ZERO_HASH,
            state_digest=os.urandom(32),
        )
        votes = [Signature(peer=peer, signature=os.urandom(64)) for peer in ids]
        index = [ChunkEntry(hash=os.urandom(32), mask=mask) for _ in range(CHUNKS)]
        store.records.write(Commit(record=record, index=index, certificate=Certificate(attempt=0, absent=[], votes=votes)))
        previous = record_hash(record)
    chunk_bytes = the_run().manifest.checkpoint_chunk_bytes
    leaves = [Hash(os.urandom(32)) for _ in range(LEAVES)]
    store.checkpoints.write(CheckpointName(RECORDS, previous), leaves, memoryview(bytes(chunk_bytes * LEAVES)))
    proof = os.urandom(PROOF_BYTES)
    store.evidence.save(evidence_hash(proof), proof)
    return Names(tree_root(leaves), evidence_hash(proof))


# ------------------------------------------------------------------------------------------------------------------------
# The peer.


class Door:
    """Handlers of the network, which pass everything to the router of the node once there is one."""

    router: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.router, name)


async def serve(folder: Path) -> None:
    """Run the peer in this process: print its address, and for each line of input its costs since the previous one."""
    signed = the_run()
    names = fill(Store(folder, Disk(durable=False)), signed.run)
    door, late = Door(), list[float]()
    state = OuterState(signed.manifest, None)
    replica = Replica.open(signed, Store(folder, Disk(durable=False)), state)
    assert replica.history.length == RECORDS
    me = Identity.generate()
    network = Libp2pNetwork(me, signed.run, door, LOOPBACK)
    node = Node(Session(me, signed.run, network, lambda event: None), replica, None, NodeSettings("", Role.SEED, "0", 1))
    door.router = node.router
    async with node.router.open() as nursery:
        await nursery.start(network.run)
        nursery.start_soon(node._swarm.run)
        nursery.start_soon(node._census._count)
        nursery.start_soon(watch_loop, lambda stall_s, busy_s: late.append(stall_s))
        say(peer=me.peer_id, addresses=list(network.addresses()), names=[names.checkpoint.hex(), names.proof.hex()])
        while True:
            busy, began, before = time.process_time(), time.perf_counter(), len(late)
            if (await hear()).get("over"):
                os._exit(0)
            stalls = late[before:] or [time.perf_counter() - began]
            say(
                busy_s=time.process_time() - busy,
                passed_s=time.perf_counter() - began,
                late_s=max(stalls),
                ticks=len(stalls),
            )


# ------------------------------------------------------------------------------------------------------------------------
# Those who ask.


class Asker(Recorder):
    """A peer that greets as an open run requires, and asks."""

    def __init__(self, identity: Identity) -> None:
        super().__init__()
        self.identity, self.answers, self.failures = identity, 0, 0

    async def greet(self, peer: PeerId) -> None:
        assert self.end is not None
        hello = make_hello(the_run().run, Role.SEED, b"", "0").encode()
        try:
            await self.end.request(peer, "hello", hello, timeout_s=TIMEOUT_S)
            self.greeted.set()
        except NetworkError:
            return

    @asynccontextmanager
    async def connected_to(self, addresses: list[str]) -> AsyncIterator[Libp2pNetwork]:
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            async with open_network(self.identity, the_run().run, self, LOOPBACK) as end:
                self.end = end
                reputation: Any = stack(end).reputation
                reputation.spend, reputation.penalise = lambda *anything: True, lambda *anything: None
                end.remember(addresses)
                with trio.fail_after(60):
                    await self.greeted.wait()
                yield end
            nursery.cancel_scope.cancel()

    async def flood(self, target: PeerId, kind: str, make: Callable[[int], bytes]) -> None:
        """Keep `UNDER_WAY` questions under way until cancelled."""
        assert self.end is not None
        network = self.end

        async def ask() -> None:
            while True:
                try:
                    self.sent = getattr(self, "sent", 0) + 1
                    await network.request(target, kind, make(self.sent), timeout_s=TIMEOUT_S)
                    self.answers += 1
                except NetworkError:
                    self.failures += 1
                    await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            for _ in range(UNDER_WAY):
                nursery.start_soon(ask)


async def besiege(words: dict[str, Any]) -> None:
    """Run the strangers in this process: for each line, flood for some seconds, and print the number of answers."""
    target, names = PeerId(words["peer"]), [Hash(bytes.fromhex(each)) for each in words["names"]]
    while True:
        order = await hear()
        askers = [Asker(Identity.generate()) for _ in range(order["strangers"])]
        async with trio.open_nursery() as nursery:

            async def stay(asker: Asker, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
                async with asker.connected_to(words["addresses"]):
                    task_status.started()
                    await trio.sleep_forever()

            for asker in askers:
                await nursery.start(stay, asker)
            kind = order["kind"].partition(",")[0]
            made = {asker: dear_questions(asker.identity, the_run().run, *names)[order["kind"]] for asker in askers}
            say(ready=True)
            await hear()
            with trio.move_on_after(order["seconds"]):
                async with trio.open_nursery() as flood:
                    for asker in askers:
                        flood.start_soon(asker.flood, target, kind, made[asker])
            banned = sum(target in asker.disconnected for asker in askers)
            nursery.cancel_scope.cancel()
        say(answers=sum(each.answers for each in askers), failures=sum(each.failures for each in askers), banned=banned)


# ------------------------------------------------------------------------------------------------------------------------


class Child:
    """A process of this benchmark that speaks JSON lines."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdout is not None
        self.process, self._lines, self._buffer = process, process.stdout, bytearray()

    async def hear(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            more = await self._lines.receive_some()
            if not more:
                raise EOFError("a process of the benchmark ended")
            self._buffer += more
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = bytearray(rest)
        words: dict[str, Any] = json.loads(line)
        return words

    async def tell(self, **words: Any) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(json.dumps(words).encode() + b"\n")


@dataclass
class Row:
    """One kind of question.

    asked_bytes, answer_bytes: the sizes of one question and its answer.  price_ms: the peer's total processor time for one.
    floods: the floods, by the number of strangers.
    """

    kind: str
    asked_bytes: int
    answer_bytes: int
    price_ms: float
    floods: list[Flood] = field(default_factory=list)


@dataclass
class Flood:
    """A flood by `strangers`.  median_ms: the median times of a member's question before, during and after it.

    answers_per_s: the answers to the strangers.  processor: the share of one processor that the peer used.  late_ms: the
    longest delay of its event loop.  banned: the strangers that were banned.
    """

    strangers: int
    median_ms: list[float]
    answers_per_s: float
    processor: float
    late_ms: float
    banned: int


class Scene:
    """The peer, the process of the strangers, and the member, which asks in this process."""

    def __init__(self, peer: Child, crowd: Child, member: Libp2pNetwork, target: PeerId, names: list[Hash]) -> None:
        self.peer, self.crowd, self.member, self.target, self.names = peer, crowd, member, target, names
        self._took: list[float] = []

    async def ask_on(self) -> None:
        """Ask the member's question again and again, until cancelled."""
        while True:
            began = trio.current_time()
            try:
                await self.member.request(self.target, "tips", TipsRequest(start=0, count=64).encode(), timeout_s=TIMEOUT_S)
            except NetworkError as error:
                print(f"the member got no answer: {error}", file=sys.stderr)
            self._took.append(trio.current_time() - began)
            await trio.sleep(ASK_EVERY_S)

    async def median_ms(self, seconds: float) -> float:
        """Return the median time of the member's questions in the next seconds."""
        self._took.clear()
        await trio.sleep(seconds)
        return 1000 * statistics.median(self._took or [seconds])

    async def cost(self) -> dict[str, Any]:
        """Return the peer's costs since the last call."""
        await self.peer.tell()
        return await self.peer.hear()

    async def price(self, kind: str, times: int = 20) -> Row:
        """Measure one kind of question, asked by a stranger, one at a time."""
        asker, name = Asker(Identity.generate()), kind.partition(",")[0]
        make = dear_questions(asker.identity, the_run().run, *self.names)[kind]
        async with asker.connected_to(list(self.addresses)) as end:
            answer = b""
            await self.cost()
            for number in range(times):
                try:
                    answer = await end.request(self.target, name, make(number), timeout_s=TIMEOUT_S)
                except NetworkError:
                    answer = b""
            cost = await self.cost()
        return Row(kind, len(make(0)), len(answer), 1000 * cost["busy_s"] / times)

    addresses: list[str] = []

    async def flood(self, kind: str, strangers: int, seconds: float) -> Flood:
        """Measure a flood of one kind."""
        await self.crowd.tell(strangers=strangers, kind=kind, seconds=seconds)
        await self.crowd.hear()
        before = await self.median_ms(seconds / 2)
        await self.cost()
        await self.crowd.tell()
        await trio.sleep(0.3)
        during = await self.median_ms(seconds - 0.6)
        cost = await self.cost()
        told = await self.crowd.hear()
        await trio.sleep(1.0)
        after = await self.median_ms(seconds / 2)
        return Flood(
            strangers,
            [round(each, 1) for each in (before, during, after)],
            round(told["answers"] / seconds, 1),
            round(cost["busy_s"] / cost["passed_s"], 2),
            round(1000 * cost["late_s"], 1),
            told["banned"],
        )


HEAD = (
    f"{'question':<16} {'asked':>7} {'answer':>8} {'price ms':>8}   keys  member ms: before, during, after  "
    "answers/s  cpu  late ms  out"
)


async def measure(kinds: list[str], strangers: list[int], seconds: float, folder: Path) -> list[Row]:
    """Measure these kinds of questions."""
    me = [sys.executable, "-m", "benchmarks.questions"]
    async with trio.open_nursery() as nursery:
        peer = Child(await nursery.start(partial(trio.run_process, [*me, "--serve", str(folder)], stdin=PIPE, stdout=PIPE)))
        words = await peer.hear()
        crowd = Child(
            await nursery.start(partial(trio.run_process, [*me, "--besiege", json.dumps(words)], stdin=PIPE, stdout=PIPE))
        )
        asker = Asker(MEMBER)
        rows: list[Row] = []
        async with asker.connected_to(words["addresses"]) as end:
            names = [Hash(bytes.fromhex(each)) for each in words["names"]]
            scene = Scene(peer, crowd, end, PeerId(words["peer"]), names)
            scene.addresses = words["addresses"]
            for kind in kinds or list(dear_questions(MEMBER, the_run().run, *names)):
                row = await scene.price(kind)
                async with trio.open_nursery() as asking:
                    asking.start_soon(scene.ask_on)
                    for count in strangers:
                        row.floods.append(await scene.flood(kind, count, seconds))
                        show(row)
                    asking.cancel_scope.cancel()
                if not strangers:
                    print(f"{row.kind:<16} {row.asked_bytes:>7} {row.answer_bytes:>8} {row.price_ms:>8.2f}", flush=True)
                rows.append(row)
        crowd.process.kill()
        peer.process.kill()
        nursery.cancel_scope.cancel()
    return rows


def show(row: Row) -> None:
    """Print the newest flood of a row."""
    flood = row.floods[-1]
    times = ", ".join(f"{each:.0f}" for each in flood.median_ms)
    print(
        f"{row.kind:<16} {row.asked_bytes:>7} {row.answer_bytes:>8} {row.price_ms:>8.2f}   {flood.strangers:>4}  "
        f"{times:>33}  {flood.answers_per_s:>9} {flood.processor:>4} {flood.late_ms:>8} {flood.banned:>4}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="KIND")
    parser.add_argument("--strangers", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", action="store_true", help="one object {questions} on the last line")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--besiege", type=json.loads, help=argparse.SUPPRESS)
    how = parser.parse_args()
    if how.serve is not None:
        trio.run(serve, how.serve)
    elif how.besiege is not None:
        trio.run(besiege, how.besiege)
    else:
        print(HEAD, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            rows = trio.run(measure, how.only, how.strangers, how.seconds, Path(folder))
        if how.json:
            print(json.dumps({"questions": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
