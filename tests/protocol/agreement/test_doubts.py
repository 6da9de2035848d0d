"""A record that was decided, and an average of it that is then proven wrong."""

from __future__ import annotations

import pytest

from protocol.agreement.events import AverageDisproved
from protocol.wire.messages import PrevoteCertificate, RecordProposal, Vote
from tests.protocol.agreement.parliament import Parliament, put_to_the_vote


@pytest.mark.parametrize("voted", [True, False], ids=["all have locked", "one has not"])
def test_what_was_decided_is_carried_though_an_average_of_it_is_proven_wrong(voted: bool) -> None:
    """Its proposer knows the certificate and is gone; the others cannot know, and a lock is stronger than a doubt."""
    parliament = Parliament(5, joiners=1)
    leader, motion = put_to_the_vote(parliament)
    *voters, last = (peer for peer in parliament.base.electors if peer != leader)
    liar = next(peer for peer in parliament.seats if peer not in parliament.base.electors)
    parliament.pass_on(RecordProposal)
    parliament.pass_on(Vote)
    if not voted:
        parliament.queue = [
            each for each in parliament.queue if not (isinstance(each[2], PrevoteCertificate) and each[1] == last)
        ]
    parliament.pass_on(PrevoteCertificate)
    parliament.pass_on(Vote)
    decided = parliament.seats[leader].committed
    assert decided is not None
    parliament.queue.clear()
    parliament.leave(leader)
    chunk = motion.index[0]
    parliament.lie = chunk.hash
    for peer in (*voters, last):
        parliament.tell(parliament.seats[peer], AverageDisproved(liar, 0, chunk.hash))
    parliament.crash(liar)
    parliament.run(100)
    assert not parliament.undecided()
    assert parliament.records() == {decided.record.encode()}
