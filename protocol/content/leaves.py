"""The hashes of a blob's chunks, from whoever has them: they are checked against the root that names the blob."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.content.messages import LeavesRequest
from protocol.events import Dropped, Notice
from protocol.network.interface import MAX_REQUEST_BYTES, NetworkError
from protocol.network.session import Session
from protocol.wire.body import decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.questions import LeavesReply

ASK_TIMEOUT_S = 10.0


async def fetch_leaves(session: Session, root: Hash, count: int, sources: Iterable[PeerId], what: str) -> list[Hash] | None:
    """The `count` hashes under `root`; None when no source has them.  what: of which kind of blob, for the log."""
    for peer in sources:
        try:
            question = LeavesRequest(blob=root).encode()
            answer = await session.network.request(peer, "leaves", question, timeout_s=ASK_TIMEOUT_S)
            reply = decode_body(LeavesReply, answer, max_bytes=MAX_REQUEST_BYTES)
        except (NetworkError, Malformed) as error:
            session.emit(Notice("debug", f"no {what} hashes from {peer}: {error}"))
            continue
        leaves = [Hash(leaf) for leaf in reply.leaves]
        if len(leaves) == count and tree_root(leaves) == root:
            return leaves
        session.emit(Dropped(peer, f"{what} hashes", "they do not match the certified digest"))
    return None
