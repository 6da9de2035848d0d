"""Which statements about versions count."""

from __future__ import annotations

from protocol.run.manifest import demo_manifest
from protocol.versions.catalogue import KEPT, Catalogue, Signed, StatementOutcome
from protocol.wire.identity import PeerId
from protocol.wire.rollouts import Version
from tests.protocol.chains import a_run
from tests.protocol.peers import ANN, BOB, ME
from tests.protocol.versions.test_route import a_blob, a_version

MANIFEST = a_run(ANN).manifest
ORGANISER = PeerId(MANIFEST.organiser)


def a_catalogue() -> Catalogue:
    return Catalogue(MANIFEST.model_copy(update={"publishers": [BOB.peer_id]}))


def hear(catalogue: Catalogue, body: Version, publisher: PeerId = ORGANISER) -> StatementOutcome:
    return catalogue.hear(Signed(body, publisher, b"raw"))


def test_the_organiser_and_the_named_keys_publish_and_nobody_else() -> None:
    catalogue, body = a_catalogue(), a_version(1, anchor=True, patch=None)
    assert catalogue.refusal(ORGANISER, body) == catalogue.refusal(BOB.peer_id, body) == ""
    assert "may not publish" in catalogue.refusal(ANN.peer_id, body), "a founder is no publisher"
    assert not Catalogue(MANIFEST).may_publish(BOB.peer_id)
    demo = demo_manifest().manifest
    assert not Catalogue(demo).may_publish(PeerId(demo.organiser)), "everybody has that key"


def test_weights_that_are_larger_than_the_model_are_refused() -> None:
    catalogue = a_catalogue()
    body = a_version(1, anchor=True, patch=None).model_copy(update={"weights": a_blob("w", catalogue.most_bytes + 1)})
    assert "larger than the run's model" in catalogue.refusal(ORGANISER, body)


def test_a_number_with_two_statements_is_void_for_good() -> None:
    catalogue = a_catalogue()
    first, second = a_version(2, anchor=True), a_version(2)
    assert hear(catalogue, a_version(1, anchor=True, patch=None)) is StatementOutcome.NEW
    assert (hear(catalogue, first), hear(catalogue, first)) == (StatementOutcome.NEW, StatementOutcome.KNOWN)
    assert hear(catalogue, second, BOB.peer_id) is StatementOutcome.VOID, "whoever signed it"
    assert catalogue.void == [2] and catalogue.newest is not None and catalogue.newest.body.version == 1
    third = a_version(2, patch=7)
    assert {hear(catalogue, each) for each in (first, second, third)} == {StatementOutcome.KNOWN}
    assert len([*catalogue.all()]) == 3, "both statements are remembered as proof, and no third"
    assert hear(catalogue, a_version(3, anchor=True)) is StatementOutcome.NEW
    assert catalogue.newest.body.version == 3


def test_a_flood_of_numbers_is_forgotten_but_for_the_newest() -> None:
    catalogue = a_catalogue()
    for number in range(1, 4 * KEPT):
        hear(catalogue, a_version(number, anchor=True, patch=None))
        hear(catalogue, a_version(number, anchor=True, patch=None).model_copy(update={"tensors": bytes(32)}))
    assert len([*catalogue.all()]) == 2 * KEPT and catalogue.newest is None
    assert hear(catalogue, a_version(1, anchor=True, patch=None)) is StatementOutcome.OLD
    assert hear(catalogue, a_version(1 << 40, anchor=True, patch=None), ME.peer_id) is StatementOutcome.NEW
    assert [*catalogue.usable] == [1 << 40]


def test_a_gap_is_a_statement_that_nobody_told_us_of() -> None:
    catalogue = a_catalogue()
    assert not catalogue.has_gap, "nothing is known"
    hear(catalogue, a_version(3))
    assert catalogue.has_gap
    hear(catalogue, a_version(2))
    assert catalogue.has_gap
    hear(catalogue, a_version(1, anchor=True, patch=None))
    assert not catalogue.has_gap
    hear(catalogue, a_version(2, anchor=True), BOB.peer_id)
    assert catalogue.void == [2] and not catalogue.has_gap, "nobody can tell us more of a number that is void"


def test_what_is_too_old_to_be_remembered_is_no_gap() -> None:
    catalogue = a_catalogue()
    hear(catalogue, a_version(KEPT + 1, base=1))
    assert not catalogue.has_gap
    hear(catalogue, a_version(KEPT + 2, base=3))
    assert catalogue.has_gap
