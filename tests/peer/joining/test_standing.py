"""Whether a peer may take part, as its own disk tells, and what it shows to the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.joining.standing import Standing, find_standing, keep_admission
from protocol.chain.records import genesis_tip
from protocol.chain.store import Store
from protocol.run.admission import bound_token, make_proof
from protocol.run.manifest import Admission, RunManifest, run_id
from protocol.run.sections import DataSection
from protocol.wire.identity import Identity
from protocol.wire.presence import Role

ORGANISER, GUEST, OTHER = (Identity.from_seed(bytes([number]) * 32) for number in range(3))
MANIFEST = RunManifest(
    name="guests only",
    organiser=ORGANISER.peer_id,
    founders="anyone",
    admission=Admission.INVITE,
    data=DataSection(sequence_length=64),
    total_rounds=100,
)
RUN = run_id(MANIFEST)
EXPIRES = 1000


def proof(expires: int = EXPIRES, guest: Identity = GUEST) -> bytes:
    return make_proof(bound_token(ORGANISER, RUN, guest.peer_id, expires=expires), RUN, guest.peer_id)


def standing(folder: Path, now: float, invited_with: bytes = b"", peer: Identity = GUEST) -> Standing:
    return find_standing(MANIFEST, RUN, peer.peer_id, invited_with, now, Role.TRAINER, folder)


def test_a_run_without_rollouts_has_no_place_for_who_makes_or_judges_them(tmp_path: Path) -> None:
    found = find_standing(MANIFEST, RUN, GUEST.peer_id, proof(), 0, Role.ROLLOUT, tmp_path)
    assert "no rollouts" in (found.problem or "") and "--role trainer" in (found.problem or "")


def test_a_token_is_good_until_it_expires(tmp_path: Path) -> None:
    assert standing(tmp_path, EXPIRES - 1, proof()) == Standing(None, proof())
    assert "has expired" in (standing(tmp_path, EXPIRES + 1, proof()).problem or "")


def test_a_peer_that_voted_in_a_round_asks_the_others(tmp_path: Path) -> None:
    """It left before it saw the record: only the others know that it is a member."""
    store = Store(tmp_path)
    assert "has expired" in (standing(tmp_path, EXPIRES + 1, proof()).problem or "")
    store.votes.save(0, genesis_tip(RUN), b"the last vote")
    assert standing(tmp_path, EXPIRES + 1, proof()) == Standing(None, proof())
    for odd in (b"rubbish", proof(guest=OTHER)):
        assert standing(tmp_path, EXPIRES + 1, odd) == Standing(None), "nothing is better than what others refuse"


def test_a_proof_is_kept_for_a_start_without_the_invitation(tmp_path: Path) -> None:
    assert "invited peers" in (standing(tmp_path, 1).problem or "")
    keep_admission(b"", tmp_path)
    assert not list(tmp_path.iterdir())
    keep_admission(proof(), tmp_path)
    assert standing(tmp_path, 1) == Standing(None, proof())
    assert standing(tmp_path, 1, proof(2 * EXPIRES)) == Standing(None, proof(2 * EXPIRES))
    assert standing(tmp_path, 1, b"rubbish") == Standing(None, proof())
    assert "has expired" in (standing(tmp_path, EXPIRES + 1).problem or "")


@pytest.mark.parametrize("damaged", [b"", b"rubbish", bytes(5000)])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "admission").write_bytes(damaged)
    assert standing(tmp_path, 1).problem is not None
    assert standing(tmp_path, 1, proof()) == Standing(None, proof())


def test_who_needs_no_proof_shows_none(tmp_path: Path) -> None:
    assert standing(tmp_path, 1, proof(), ORGANISER) == Standing(None)
    listed = MANIFEST.model_copy(update={"admission": Admission.ALLOWLIST, "allowlist": [GUEST.peer_id]})
    for manifest in (listed, MANIFEST.model_copy(update={"admission": Admission.OPEN})):
        assert find_standing(manifest, RUN, GUEST.peer_id, proof(), 1, Role.TRAINER, tmp_path) == Standing(None)
    refused = find_standing(listed, RUN, OTHER.peer_id, proof(), 1, Role.TRAINER, tmp_path)
    assert "listed peers" in (refused.problem or "")
