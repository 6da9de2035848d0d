"""Whether a peer may take part, as its own disk tells."""

from __future__ import annotations

from pathlib import Path

from peer.joining.standing import standing_problem
from protocol.run.admission import make_token
from protocol.run.manifest import Admission, DataSection, RunManifest, run_id
from protocol.state.store import Store
from protocol.wire.identity import Identity
from protocol.wire.messages import Role

ORGANISER, GUEST = Identity.generate(), Identity.generate()
MANIFEST = RunManifest(
    name="guests only",
    organiser=ORGANISER.peer_id,
    founders="anyone",
    admission=Admission.INVITE,
    data=DataSection(sequence_length=64),
)
EXPIRED_AT = 1000
TOKEN = make_token(ORGANISER, run_id(MANIFEST), Role.TRAINER, EXPIRED_AT)


def problem(folder: Path, now: float) -> str | None:
    return standing_problem(MANIFEST, run_id(MANIFEST), GUEST.peer_id, TOKEN, now, Role.TRAINER, folder)


def test_a_token_is_good_until_it_expires(tmp_path: Path) -> None:
    assert problem(tmp_path, EXPIRED_AT - 1) is None
    assert "has expired" in (problem(tmp_path, EXPIRED_AT + 1) or "")


def test_a_peer_that_promised_in_a_round_asks_the_others(tmp_path: Path) -> None:
    """It left before it saw the record: only the others know that it is a member."""
    store = Store(tmp_path)
    assert "has expired" in (problem(tmp_path, EXPIRED_AT + 1) or "")
    store.promise.save(b"the last promise")
    assert problem(tmp_path, EXPIRED_AT + 1) is None
