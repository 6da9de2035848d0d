"""What a round makes of what membership has heard."""

from __future__ import annotations

import trio
import trio.testing

from protocol.chain.base import Base
from protocol.membership.liveness import Membership
from protocol.node.round_runner import Surroundings
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Phase
from tests.protocol.peers import TheseMembers, a_heartbeat

TIP = Hash(b"\x09" * 32)
ME, *OTHERS = PEERS = sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(5))


def ahead(steps: dict[PeerId, int], electors: list[PeerId], tip: Hash = TIP, phase: Phase = Phase.COMPUTING) -> int:
    """By how much the others are ahead when these peers have done so many steps on `tip`."""

    async def main() -> int:
        membership = Membership(ME, 0.0, TheseMembers(*PEERS))
        for peer, done in steps.items():
            beat = a_heartbeat(round=7, tip=tip, steps=done, phase=phase)
            membership.on_connected(peer, trio.current_time())
            membership.on_heartbeat(peer, beat, trio.current_time(), peer)
        return Surroundings(ME, membership, Base(7, 0, TIP, tuple(electors), tuple(electors))).steps_ahead()

    return trio.run(main, clock=trio.testing.MockClock())


def test_the_others_are_ahead_by_what_more_than_half_of_them_have_done() -> None:
    for done, steps in ([], 0), ([6], 6), ([4, 6], 4), ([0, 5, 9], 5), ([1, 3, 5, 7], 3):
        electors = OTHERS[: len(done)]
        assert ahead(dict(zip(electors, done, strict=True)), [ME, *electors]) == steps


def test_strangers_peers_elsewhere_and_those_that_do_not_train_now_are_ahead_of_nobody() -> None:
    done = dict.fromkeys(OTHERS, 6)
    assert ahead(done, []) == 0 and ahead(done, [ME]) == 0
    assert ahead(done, OTHERS, tip=Hash(b"\x08" * 32)) == 0
    assert ahead(done, OTHERS, phase=Phase.SYNCING) == 0
    assert ahead({OTHERS[0]: 6}, OTHERS) == 0, "the others were not heard"
    assert ahead(done, OTHERS, phase=Phase.EXCHANGING) == 6
