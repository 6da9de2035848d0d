"""An invitation names where the peer really is, and a member needs no good token to come back; nobody else does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio

from peer.errors import ExitCode
from peer.keyfile import load_identity
from protocol.events.events import Notice, PhaseChanged
from protocol.run.admission import bearer_token, make_proof
from protocol.run.invitation import make_invitation, read_invitation
from protocol.run.manifest import open_manifest
from protocol.wire.identity import Identity, PeerId
from tests.e2e.swarm import TINY_RUN, Peer, Swarm, invitation_in
from tests.e2e.test_invitation import ADMISSION, refused, turned_away

pytestmark = pytest.mark.slow


def invited(swarm: Swarm, organiser: Peer, run: str) -> str:
    """What the organiser's `peer run invite` prints while its peer runs."""
    swarm.until("the organiser listens", lambda: organiser.heard(PhaseChanged) and organiser.status()["addresses"])
    invitation = invitation_in(swarm.command(organiser.folder, "run", "invite", run, "--bearer"))
    assert read_invitation(invitation).addresses == organiser.status()["addresses"]
    return invitation


def test_a_member_with_an_expired_token_comes_back_and_a_newcomer_with_it_stays_outside(tmp_path: Path) -> None:
    with Swarm.created(tmp_path, ADMISSION.format("invite") + TINY_RUN) as swarm:
        organiser = swarm.peer("organiser").start()
        signed = open_manifest(swarm.manifest.read_bytes())
        invitation = invited(swarm, organiser, signed.run.hex()[:12])
        status = organiser.status()
        assert status["invitation"] == "" and status["invite_command"].startswith("peer run invite ")
        guest = swarm.peer("guest", invitation).start()
        swarm.whole(organiser, guest)
        assert guest.status()["invite_command"] == ""
        founders = [peer for peer in (organiser, guest) if any("founds the run" in each.text for each in peer.heard(Notice))]
        assert founders == [organiser]
        for peer in (guest, organiser):
            assert peer.leave() == ExitCode.OK

        organiser.start()
        signer = load_identity(organiser.folder)
        assert signer is not None
        key, intruder = Identity.generate(), Identity.generate()
        token = bearer_token(signer, signed.run, key, expires=int(time.time()) - 3 * 86_400)
        found = read_invitation(invited(swarm, organiser, signed.run.hex()[:12]))
        expired = make_invitation(signed.run, PeerId(signed.manifest.organiser), found.addresses, token, key.seed)
        shown = swarm.command(guest.folder, "run", "show", expired)
        assert "(3 days ago)" in shown and "up to 64 peers" in shown and "role trainer" in shown
        assert "has expired; ask the run's organiser" in turned_away(swarm, "newcomer", expired)
        proof = make_proof(token, signed.run, intruder.peer_id, key)
        assert "has expired" in trio.run(refused, signed, found, intruder, proof)
        (guest.folder / "runs" / signed.run.hex() / "admission").unlink()
        guest.what = [expired]
        guest.start()
        rounds = swarm.whole(organiser, guest)
        swarm.equal(rounds, organiser, guest)
        assert guest.peer_id != organiser.peer_id
