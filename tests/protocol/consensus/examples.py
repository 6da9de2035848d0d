"""Peers, settings and statements of a small round, for the tables of the pure modules."""

from __future__ import annotations

from typing import Any

from protocol.consensus.terms import PeerView
from protocol.state.base import RoundSettings
from protocol.state.chain import index_root
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import ChunkEntry, Member, Plan, Provenance, Ready, Record

PEERS: list[PeerId] = sorted(Identity.from_seed(bytes([number + 1]) * 32).peer_id for number in range(5))
TIP = Hash(b"\x09" * 32)
STATE = Hash(b"\x03" * 32)
CHUNKS = 3
SETTINGS = RoundSettings(
    run=Hash(b"\x07" * 32),
    fragments=1,
    chunks=CHUNKS,
    max_tokens=1000,
    codec="int8",
    min_members=2,
    max_members=4,
    grace_s=4.0,
    eviction_s=20.0,
    stall_s=6.0,
    founders=None,
    is_open=True,
    seasoning_rounds=3,
    tenure_rounds=100,
    settle_rounds=100,
    settle_s=86_400.0,
    listen_s=6.0,
)
INDEX = [ChunkEntry(hash=chunk_hash(bytes([chunk])), mask=b"\x07") for chunk in range(CHUNKS)]
PROVENANCE = Provenance(owners=b"\0\1\2", signers=b"\0\1\2", signatures=[bytes(64)] * CHUNKS)


def members(*peers: PeerId, tokens: int = 100) -> list[Member]:
    """Members with contributions of so many tokens."""
    return [Member(peer=peer, tokens=tokens, root=ZERO_HASH) for peer in peers]


def a_record(**changes: Any) -> Record:
    """The record of round 5 with the first three peers."""
    fields: dict[str, Any] = {
        "round": 5,
        "fragment": 0,
        "attempt": 0,
        "proposer": PEERS[0],
        "previous": TIP,
        "members": members(*PEERS[:3]),
        "codec": "int8",
        "result_root": index_root(INDEX),
        "state_digest": STATE,
        "loss": 2.0,
    }
    return Record(**{**fields, **changes})


BASE = SETTINGS.base(5, TIP, a_record(round=4, previous=ZERO_HASH, members=members(*PEERS[:4])))
"""A round with the first four peers as electors."""


def a_plan(**changes: Any) -> Plan:
    """A plan of round 5 with the first three peers."""
    fields: dict[str, Any] = {
        "round": 5,
        "fragment": 0,
        "base": TIP,
        "members": members(*PEERS[:3]),
        "owners": b"\0\1\2",
        "state_digest": STATE,
        "loss": 2.0,
    }
    return Plan(**{**fields, **changes})


def a_ready(**changes: Any) -> Ready:
    """A READY for round 5."""
    fields: dict[str, Any] = {
        "round": 5,
        "fragment": 0,
        "base": TIP,
        "incarnation": 1,
        "serial": 1,
        "tokens": 100,
        "steps": 10,
        "loss": 2.0,
        "norm": 1.0,
        "root": ZERO_HASH,
        "state_digest": STATE,
    }
    return Ready(**{**fields, **changes})


AT_WORK = PeerView(live=True, on_tip=True, left=False, silent_s=0.0)
ARRIVING = PeerView(live=True, on_tip=False, left=False, silent_s=0.0, near=True)
ELSEWHERE = PeerView(live=True, on_tip=False, left=False, silent_s=0.0)
QUIET = PeerView(live=False, on_tip=False, left=False, silent_s=7.0)
LONG_SILENT = PeerView(live=False, on_tip=False, left=False, silent_s=20.0)
GONE = PeerView(live=False, on_tip=False, left=True, silent_s=1.0)
