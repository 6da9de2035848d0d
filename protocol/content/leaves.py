"""The hashes of a blob's chunks, from whoever has them: they are checked against the root that names the blob."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from protocol.content.messages import LeavesRequest
from protocol.events import Dropped, Notice
from protocol.network.interface import MAX_REQUEST_BYTES, NetworkError
from protocol.network.session import Session
from protocol.short_id import short_id
from protocol.wire.body import decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.questions import LeavesReply

ASK_TIMEOUT_S = 10.0
SOON_S, AT_ONCE = 1.0, 8
"""One more peer is asked after so long without an answer, up to so many at a time: who says nothing holds nobody up."""


async def fetch_leaves(session: Session, root: Hash, count: int, sources: Iterable[PeerId], what: str) -> list[Hash] | None:
    """The `count` hashes under `root`; None when no source has them.  what: of which kind of blob, for the log."""
    found: list[list[Hash]] = []
    waiting, over = iter(sources), trio.Event()

    async def ask_in_turn() -> None:
        for peer in waiting:
            leaves = await _ask(session, root, count, peer, what)
            if leaves is not None:
                found.append(leaves)
                nursery.cancel_scope.cancel()
                return
        over.set()

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(ask_in_turn)
            with trio.move_on_after(SOON_S):
                await over.wait()
            if over.is_set():
                break
    return found[0] if found else None


async def _ask(session: Session, root: Hash, count: int, peer: PeerId, what: str) -> list[Hash] | None:
    try:
        question = LeavesRequest(blob=root).encode()
        answer = await session.network.request(peer, "leaves", question, timeout_s=ASK_TIMEOUT_S)
        reply = decode_body(LeavesReply, answer, max_bytes=MAX_REQUEST_BYTES)
    except (NetworkError, Malformed) as error:
        session.emit(Notice("debug", f"no {what} hashes from {short_id(peer)}: {error}"))
        return None
    leaves = [Hash(leaf) for leaf in reply.leaves]
    if len(leaves) == count and tree_root(leaves) == root:
        return leaves
    session.emit(Dropped(peer, f"{what} hashes", "they do not match the certified digest"))
    return None
