"""Whole replicas on a table: records with real votes, the results that they name, and the state that follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from protocol.chain.credit import Credit, Ledger
from protocol.chain.outer_state import OuterState
from protocol.chain.records import index_root
from protocol.chain.replica import Replica
from protocol.chain.results import ResultName
from protocol.chain.store import Store
from protocol.disk import ScratchFolder
from protocol.run.manifest import Founders, SignedManifest, sign
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import ChunkEntry, Commit, Member, Record, mask_of, member_of, pack
from tests.attacks.forgeries import certificate
from tests.protocol.peers import a_first_ready
from tests.simulation.world import simulated_run

FIVE = sorted((Identity.from_seed(bytes([number]) * 32) for number in range(11, 16)), key=lambda each: each.peer_id)
"""Peers that may be founders."""


def a_run(*founders: Identity, **changes: Any) -> SignedManifest:
    """A small run with these founders; anybody's where there are none.  changes: of other fields of the manifest."""
    named: Founders = [each.peer_id for each in sorted(founders, key=lambda each: each.peer_id)] if founders else "anyone"
    manifest = simulated_run().manifest.model_copy(update={"founders": named} | changes)
    return sign(Identity.from_seed(b"\x2a" * 32), manifest)


def in_run(signed: SignedManifest) -> pytest.MarkDecorator:
    """Have the table of a test hold this run."""
    return pytest.mark.parametrize("signed", [signed], ids=[""])


def credits_in(commits: Iterable[Commit]) -> dict[PeerId, Credit]:
    """The credit of every peer over these rounds."""
    ledger = Ledger()
    for commit in commits:
        ledger.add(commit)
    return ledger.credits


async def initialise(theta: memoryview) -> None:
    """The parameters at the beginning of every run here."""
    await trio.lowlevel.checkpoint()
    np.frombuffer(theta, np.float32)[:] = 0.5


def a_replica(signed: SignedManifest, folder: Path, scratch: ScratchFolder | None = None) -> Replica:
    """With nothing in it but the beginning."""
    replica = Replica.open(signed, Store(folder), OuterState(signed.manifest, scratch))
    np.frombuffer(replica.state.theta, np.float32)[:] = 0.5
    return replica


def result_of(replica: Replica, salt: int) -> bytearray:
    """Codec bytes of a result that `salt` decides."""
    layout = replica.layouts.result
    data = bytearray(layout.payload_bytes)
    random = np.random.default_rng([replica.history.length, salt])
    for span in layout:
        layout.format.encode(random.standard_normal(span.count).astype(np.float32), memoryview(data)[span.encoded])
    return data


def next_commit(
    replica: Replica,
    members: Sequence[Identity],
    *,
    absent: Sequence[Identity] = (),
    voters: Sequence[Identity] = FIVE,
    salt: int = 0,
    state_digest: Hash | None = None,
) -> tuple[Commit, bytearray]:
    """The next record on the tip of `replica`, and its result.  voters: those of the electors that vote, if not `absent`.

    state_digest: in place of the true one.
    """
    base, run = replica.base, replica.signed.run
    digest = replica.state.digest() if state_digest is None else state_digest
    result = result_of(replica, salt)
    mask = mask_of(range(len(members)), len(members))
    index = [ChunkEntry(hash=chunk_hash(result[span.encoded]), mask=mask) for span in replica.layouts.result]
    ready = a_first_ready(round=base.round, fragment=base.fragment, base=base.tip, serial=1, state_digest=digest)
    named: list[Member] = [member_of(each.peer_id, ready, pack(each, run, ready).signature) for each in members]
    record = Record(
        round=base.round,
        fragment=base.fragment,
        previous=base.tip,
        members=sorted(named, key=lambda member: member.peer),
        codec=replica.manifest.codec,
        result_root=index_root(index),
        state_digest=digest,
    )
    names = sorted(each.peer_id for each in absent)
    stay = [peer for peer in base.electors if peer not in names] or [each.peer_id for each in members]
    signers = [each for each in voters if each.peer_id in stay]
    proof = certificate(run, record, signers, absent=names)
    return Commit(record=record, index=index, certificate=proof), result


def store_result(replica: Replica, commit: Commit, result: bytearray) -> None:
    """To the disk."""
    file = replica.store.results.make(len(result))
    file.view[:] = result
    file.commit(ResultName.of(commit.record))


def grow(replica: Replica, rounds: int, members: Sequence[Identity], *, with_results: bool = True, **how: Any) -> None:
    """So many more records, with their results on disk, and applied."""
    for _ in range(rounds):
        commit, result = next_commit(replica, members, **how)
        if with_results:
            store_result(replica, commit, result)
        replica.history.append(commit)
        record = commit.record
        step = replica.manifest.outer_step(record.round, [member.tokens for member in record.members], memoryview(result))
        replica.state.apply(memoryview(result), record.fragment, step)
