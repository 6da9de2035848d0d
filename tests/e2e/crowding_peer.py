"""`peer`, with a crowd of keys besides: they state copies of others' rollouts, in the right size and in wrong ones, and
batches of which nobody has the bytes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import trio

from peer.cli import main
from protocol.rollouts.batch import PooledBatch
from protocol.rollouts.rollouts import Rollouts
from protocol.transport.interface import NetworkError, Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity
from protocol.wire.messages import pack

EVERY_S = 0.5
MADE_UP = 0.25
"""How many batches without bytes are stated each time, each by a key of its own."""

honest = Rollouts.run


async def _state(session: Session, like: PooledBatch, root: Hash, size: int) -> None:
    """A batch like this one, of a peer that nobody has ever heard of."""
    body = like.body.model_copy(update={"root": root, "size": size, "number": 0, "incarnation": 1})
    with suppress(NetworkError):  # the next one may get through
        await session.network.publish(pack(Identity.from_seed(os.urandom(32)), session.run, body).raw)


async def _crowd(rollouts: Rollouts) -> None:
    copied: set[Hash] = set()
    session = rollouts._session
    while True:
        await trio.sleep(EVERY_S)
        for batch in [*rollouts._pool]:
            if batch.root not in copied:
                copied.add(batch.root)
                for size in (batch.body.size, batch.body.size - 1, batch.body.size):
                    await _state(session, batch, batch.root, size)
        for batch in [*rollouts._pool][-1:]:
            if os.urandom(1)[0] < 256 * MADE_UP:
                await _state(session, batch, Hash(os.urandom(32)), batch.body.size)


async def _run(rollouts: Rollouts) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_crowd, rollouts)
        await honest(rollouts)


if __name__ == "__main__":
    Rollouts.run = _run  # type: ignore[method-assign,assignment]
    sys.exit(main())
