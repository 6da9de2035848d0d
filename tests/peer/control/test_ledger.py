"""A chain that is followed: each record is counted once, and again if the peer has replaced it."""

from __future__ import annotations

from pathlib import Path

from peer.control.ledger import CountedChain, ledger, ledger_of
from protocol.chain.store import Store
from tests.protocol.chains import FIVE, a_replica, a_run, grow

ANN, BOB = FIVE[:2]
RUN = a_run(ANN)


def count_all(chain: CountedChain) -> int:
    """Return the number of records that were not counted before."""
    chain.begins_anew()
    before = chain.length
    while chain.count_next() is not None:
        pass
    return chain.length - before


def test_records_that_came_later_are_counted_once(tmp_path: Path) -> None:
    replica = a_replica(RUN, tmp_path)
    chain = CountedChain(replica.store.records, RUN.run)
    assert count_all(chain) == 0
    for length, added in ((3, 3), (5, 2)):
        grow(replica, length - replica.history.length, [ANN, BOB])
        assert (count_all(chain), count_all(chain)) == (added, 0)
        assert chain.tip == replica.history.tip
        assert ledger_of(chain.ledger.credits, chain.length, 9) == ledger(replica.store, 9)
        assert ledger_of(chain.ledger.credits, chain.length, 1)["untold"] == 1
    replica.state.close()


def test_a_replaced_branch_is_counted_anew(tmp_path: Path) -> None:
    replica = a_replica(RUN, tmp_path)
    grow(replica, 3, [ANN])
    chain = CountedChain(Store(tmp_path).records, RUN.run)
    count_all(chain)
    replica.state.close()
    replica.store.records.truncate(1)
    again = a_replica(RUN, tmp_path)
    grow(again, 1, [ANN, BOB], salt=7)
    again.state.close()
    assert chain.begins_anew() and count_all(chain) == 2
    told = ledger_of(chain.ledger.credits, chain.length)
    assert told == ledger(Store(tmp_path)) and [member["rounds"] for member in told["members"]] == [2, 1]
