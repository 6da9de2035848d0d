"""Cost of a stranger's statement for the event loop: the largest statements, and hostile ones.

`python -m benchmarks.statements` prints the time of decoding (processor time, the least of some), and the delay of a task on
the event loop while such statements are decoded in the worker thread, one after another.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import msgpack
import trio

from protocol.formats.model import MAX_CHUNKS
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ELECTORS, MAX_MEMBERS, Body, freeze_gc, seal
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity
from protocol.wire.messages import (
    ChunkEntry,
    Member,
    Plan,
    Proposal,
    Provenance,
    Record,
    RecordProposal,
    ViewChange,
    pack,
    unpack,
)

REPEAT = 9
SECONDS = 2.0
TICK_S = 0.001
ME = Identity.generate()
RUN = Hash(bytes(32))


def members() -> list[Member]:
    """Return the largest number of members that a round can have."""
    return [
        Member(
            peer=Identity.generate().peer_id,
            incarnation=1,
            serial=1,
            tokens=1,
            steps=1,
            loss=1.5,
            norm=1.0,
            root=os.urandom(32),
            signature=os.urandom(64),
        )
        for _ in range(MAX_MEMBERS)
    ]


def view_changes() -> list[bytes]:
    """Return view changes of the largest number of electors that a run can have."""
    view_change = ViewChange(
        round=0, base=bytes(32), attempt=0, absent=[], held=bytes(8), plan=bytes(32), lock=None, reduced=None
    )
    return [pack(Identity.generate(), RUN, view_change).raw for _ in range(MAX_ELECTORS)]


def record_proposal(chunks: int) -> RecordProposal:
    """Return the largest record proposal of a run with `chunks` chunks."""
    record = Record(
        round=0,
        fragment=0,
        previous=bytes(32),
        members=members(),
        codec="int8",
        result_root=bytes(32),
        state_digest=bytes(32),
    )
    index = [ChunkEntry(hash=os.urandom(32), mask=bytes(MAX_MEMBERS // 8)) for _ in range(chunks)]
    signatures = [os.urandom(64) for _ in range(chunks)]
    provenance = Provenance(owners=bytes(chunks), signers=bytes(chunks), signatures=signatures)
    return RecordProposal(
        attempt=0, absent=[], record=record, index=index, provenance=provenance, view_changes=view_changes(), proof=None
    )


def statements() -> dict[str, bytes]:
    """Return the statements by their names."""
    whole = record_proposal(MAX_CHUNKS)
    fields: dict[str, Any] = msgpack.unpackb(whole.encode())
    plan = Plan(round=0, fragment=0, base=bytes(32), members=members(), owners=bytes(MAX_CHUNKS), state_digest=bytes(32))

    def odd(value: Any, kind: type[Body] = RecordProposal) -> bytes:
        return seal(ME, RUN, kind.KIND, canonical.encode(value)).raw

    return {
        f"record proposal, {MAX_CHUNKS} chunks, {MAX_MEMBERS} members": pack(ME, RUN, whole).raw,
        "the same, 400 chunks": pack(ME, RUN, record_proposal(400)).raw,
        f"proposal, {MAX_MEMBERS} members": pack(
            ME, RUN, Proposal(attempt=0, absent=[], plan=plan, view_changes=view_changes())
        ).raw,
        "record proposal, every entry wrong": odd({**fields, "index": [{"hash": b"", "mask": b""}] * MAX_CHUNKS}),
        "record proposal, a float for an integer": odd({**fields, "attempt": 0.0}),
        "record proposal of 26 000 empty maps": odd([{}] * 26_000),
        "record proposal of 60 000 empty maps": odd([{}] * 60_000),
        "proposal of 60 000 empty maps": odd([{}] * 60_000, Proposal),
    }


def milliseconds(raw: bytes) -> float:
    """Return the least processor time of one decoding."""
    times = []
    for _ in range(REPEAT):
        began = time.process_time()
        _try(raw)
        times.append(time.process_time() - began)
    return min(times) * 1000


def _try(raw: bytes) -> None:
    with contextlib.suppress(Malformed):
        unpack(raw, RUN)


async def lateness(decode: Callable[[], object]) -> tuple[float, float]:
    """Return the median and the greatest delay (ms) of a task that is due every millisecond, while `decode` is repeated."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            due = trio.current_time() + TICK_S
            await trio.sleep(TICK_S)
            late.append(trio.current_time() - due)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        end = trio.current_time() + SECONDS
        while trio.current_time() < end:
            await trio.to_thread.run_sync(decode)
        nursery.cancel_scope.cancel()
    return sorted(late)[len(late) // 2] * 1000, max(late) * 1000


def main() -> None:
    freeze_gc()
    print("| statement | bytes | decoding, ms | event loop late meanwhile, median and most, ms |")
    print("|---|---|---|---|")
    median, most = trio.run(lateness, lambda: time.sleep(0.01))
    print(f"| nothing | | | {median:.1f}, {most:.1f} |")
    for name, raw in statements().items():
        median, most = trio.run(lateness, lambda raw=raw: _try(raw))
        print(f"| {name} | {len(raw)} | {milliseconds(raw):.1f} | {median:.1f}, {most:.1f} |")


if __name__ == "__main__":
    main()
