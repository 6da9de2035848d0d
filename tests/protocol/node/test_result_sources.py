"""Who is asked for the result of a record, and what a peer says while nobody gives it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from protocol.agreement.events import ObtainResult
from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.node.exchanges import FAILURES, MAX_OTHERS, ResultSources
from protocol.wire.identity import Identity, PeerId
from tests.protocol.council import INDEX, RECORD
from tests.protocol.peers import ANN, BOB, ME, TheseMembers, a_heartbeat

pytestmark = pytest.mark.usefixtures("virtual_time")

OTHERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(40, 60)]


class Asked:
    """Fetches that fail until somebody outside of the record is asked."""

    def __init__(self, helper: PeerId) -> None:
        self.sources, self._helper = list[tuple[PeerId, ...]](), helper

    async def fetch_chunks(
        self, record: object, index: object, missing: Sequence[int], into: memoryview, sources: Sequence[PeerId]
    ) -> bool:
        await trio.sleep(3)
        self.sources.append(tuple(sources))
        return self._helper in sources and len(self.sources) > FAILURES + 1


@pytest.mark.parametrize("certified", [True, False])
async def test_after_some_failures_everybody_is_asked_and_the_peer_says_so(certified: bool) -> None:
    asked, activity = Asked(OTHERS[0]), Activity(lambda event: None)
    fetcher: Any = asked
    membership = Membership(ME.peer_id, 0.0, TheseMembers(OTHERS[0]))
    provenance: Any = None if certified else SimpleNamespace()
    effect = ObtainResult(RECORD, tuple(INDEX), (ANN.peer_id, BOB.peer_id), ANN.peer_id, provenance)
    details: list[str] = []

    async def watch() -> None:
        while True:
            details.append(activity.detail)
            await trio.sleep(1)

    for peer in (ANN.peer_id, *OTHERS):
        membership.on_connected(peer, 0.0)
        membership.on_heartbeat(peer, a_heartbeat(name="ann" if peer == ANN.peer_id else "x"), 0.0, peer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await ResultSources(fetcher, membership, activity).fetch(effect, [0, 2], memoryview(b""))
        nursery.cancel_scope.cancel()
    assert asked.sources[:FAILURES] == [effect.sources] * FAILURES
    later = asked.sources[FAILURES]
    assert later[:2] == effect.sources and later[2] == OTHERS[0] and len(set(later)) == len(later) <= 2 + MAX_OTHERS
    assert len(asked.sources) == FAILURES + 2
    begin = "the others have agreed on round" if certified else "cannot check the proposed record"
    assert details[0] == "" and details[-1].startswith(begin)
    assert "no peer sent us 2 parts" in details[-1] and "asking ann, " in details[-1] and "4 tries" in details[-1]
