"""Which peers of the simulated network can reach each other."""

from __future__ import annotations

from protocol.wire.identity import PeerId
from tests.simulation.wire import Topology

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def test_a_partition_separates_its_sides_and_the_next_one_replaces_it() -> None:
    topology = Topology()
    assert topology.linked(A, B) and not topology.linked(A, A)
    topology.partition([A], [B])
    assert not topology.linked(A, B) and topology.linked(A, C), "a peer that is not named is on the first side"
    topology.partition()
    assert topology.linked(A, B)


def test_gossip_goes_round_a_cut_and_other_messages_do_not() -> None:
    topology = Topology()
    topology.cut(A, B)
    assert topology.linked(A, B) and not topology.carries(A, B) and topology.carries(B, A)
    assert topology.hops(A, B, [A, B]) == 0 and topology.hops(A, B, [A, B, C]) == 2
    assert topology.hops(A, C, [A, B, C]) == 1
    topology.mend()
    assert topology.carries(A, B)


def test_forgotten_peers_stay_apart() -> None:
    topology = Topology()
    topology.forget(A, B)
    topology.partition()
    topology.mend()
    assert not topology.linked(A, B) and not topology.linked(B, A)
