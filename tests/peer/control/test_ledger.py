"""A running peer's ledger counts each record once, and again if the peer has replaced it."""

from __future__ import annotations

from pathlib import Path

from peer.control.ledger import ChainLedger, ledger
from protocol.chain.store import Store
from tests.protocol.chains import FIVE, a_replica, a_run, grow

ANN, BOB = FIVE[:2]
RUN = a_run(ANN)


def test_a_ledger_that_is_read_again_is_the_one_of_the_whole_chain(tmp_path: Path) -> None:
    replica = a_replica(RUN, tmp_path)
    counted = ChainLedger(replica.store)
    assert counted.read(9) == ledger(replica.store, 9)
    for length in (3, 5):
        grow(replica, length - replica.history.length, [ANN, BOB])
        assert counted.read(9) == ledger(replica.store, 9) == counted.read(9)
        assert counted.read(1)["untold"] == 1
    replica.state.close()


def test_a_replaced_branch_is_counted_anew(tmp_path: Path) -> None:
    replica = a_replica(RUN, tmp_path)
    grow(replica, 3, [ANN])
    counted = ChainLedger(Store(tmp_path))
    counted.read(9)
    replica.state.close()
    replica.store.records.truncate(1)
    again = a_replica(RUN, tmp_path)
    grow(again, 1, [ANN, BOB], salt=7)
    again.state.close()
    assert counted.read(9) == ledger(Store(tmp_path), 9)
    assert [member["rounds"] for member in counted.read(9)["members"]] == [2, 1]
