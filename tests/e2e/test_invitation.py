"""An organiser's run, as organiser, guest and intruder meet it: made, invited to, joined through an address alone."""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path

import pytest
import trio

from peer.errors import ExitCode
from peer.keyfile import load_identity
from protocol.events.events import PeerJoined
from protocol.run.admission import bound_token, make_hello, make_proof
from protocol.run.invitation import Invitation, make_invitation, read_invitation
from protocol.run.manifest import SignedManifest, open_manifest
from protocol.transport.interface import Refused
from protocol.transport.network import open_network
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack
from protocol.wire.presence import Goodbye, Role
from protocol.wire.questions import TipsRequest
from tests.e2e.swarm import PATIENCE_S, TINY_RUN, Peer, Swarm, invitation_in
from tests.protocol.transport.recorder import LOOPBACK, Recorder

ADMISSION = 'admission = "{}"\n'


def free_port() -> int:
    """One that the system gives to nobody else meanwhile: it gives those from 32768 on to whoever asks for any."""
    while True:
        port = random.randrange(10_000, 32_768)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def organise(swarm: Swarm) -> tuple[Peer, str]:
    """The organiser makes the run and joins it; the invitation that `peer run create` printed."""
    port = free_port()
    organiser = swarm.peer("organiser")
    printed = swarm.command(
        organiser.folder,
        "run",
        "create",
        str(swarm.run_file),
        "--out",
        str(swarm.manifest),
        "--address",
        f"/ip4/127.0.0.1/tcp/{port}",
    )
    organiser.start("--port", str(port))
    return organiser, invitation_in(printed)


def turned_away(swarm: Swarm, name: str, invitation: str) -> str:
    """What somebody reads whom the run does not admit; the manifest was fetched to find that out."""
    return swarm.command(swarm.place(name), "join", invitation, "--headless", "--local", code=ExitCode.NOT_ADMITTED)


async def refused(signed: SignedManifest, invitation: Invitation, intruder: Identity, proof: bytes) -> str:
    """The answer to a peer that does not ask its own software whether it may: it knocks, and then asks all the same."""
    recorder = Recorder()
    with trio.fail_after(PATIENCE_S):
        async with open_network(intruder, signed.run, recorder, LOOPBACK) as network:
            network.remember(invitation.addresses)
            await recorder.until(lambda: recorder.connected)
            peer = recorder.connected[0]
            hello = make_hello(signed.run, Role.TRAINER, proof, "1").encode()
            with pytest.raises(Refused) as refusal:
                await network.request(peer, "hello", hello, timeout_s=PATIENCE_S)
            for kind, data in (
                ("tips", TipsRequest(start=0, count=9).encode()),
                ("round", pack(intruder, signed.run, Goodbye(incarnation=1, seq=1)).raw),
            ):
                with pytest.raises(Refused, match="a hello must come first"):
                    await network.request(peer, kind, data, timeout_s=PATIENCE_S)
            return str(refusal.value)


@pytest.mark.slow
def test_guests_with_a_token_fetch_the_manifest_and_train_and_intruders_are_refused(tmp_path: Path) -> None:
    with Swarm(tmp_path, ADMISSION.format("invite") + TINY_RUN) as swarm:
        organiser, for_all = organise(swarm)
        signed = open_manifest(swarm.manifest.read_bytes())
        run = signed.run.hex()[:12]
        friend = swarm.peer("friend", for_all).start()
        bare = make_invitation(signed.run, PeerId(signed.manifest.organiser), read_invitation(for_all).addresses)
        address = read_invitation(bare).addresses[0].split("/p2p/")[0]
        name = PeerId(swarm.command(swarm.place("guest"), "id").strip())
        invitation = invitation_in(swarm.command(organiser.folder, "run", "invite", run, name, "--address", address))
        guest = swarm.peer("guest", invitation).start()
        assert "admits only invited peers" in turned_away(swarm, "beggar", bare)
        forger = Identity.generate()
        forged = bound_token(forger, signed.run, forger.peer_id, expires=int(time.time()) + 3600)
        false = make_invitation(signed.run, PeerId(signed.manifest.organiser), read_invitation(bare).addresses, forged)
        assert "did not sign" in turned_away(swarm, "forger", false)
        swarm.until("the organiser is known", lambda: organiser.peer_id)
        found = read_invitation(bare)
        assert "admits only invited peers" in trio.run(refused, signed, found, Identity.generate(), b"")
        proof = make_proof(forged, signed.run, forger.peer_id)
        assert "did not sign" in trio.run(refused, signed, found, forger, proof)
        stolen = read_invitation(invitation).proof_for(name)
        assert f"is for {name}" in turned_away(swarm, "thief", invitation)
        assert f"is for {name}" in trio.run(refused, signed, found, forger, stolen)
        rounds = swarm.whole(organiser, guest, friend)
        swarm.equal(rounds, organiser, guest, friend)
        commits = [*organiser.commits.values(), *guest.commits.values()]
        members = {member for commit in commits for member in commit.members}
        assert members == {organiser.peer_id, guest.peer_id, friend.peer_id}


@pytest.mark.slow
def test_the_invitation_of_a_new_run_admits_all_friends_before_its_first_round(tmp_path: Path) -> None:
    named = TINY_RUN.replace('founders = "anyone"\n', "").replace("min_members = 2", "min_members = 3")
    with Swarm(tmp_path) as swarm:
        swarm.run_file.write_text(named)
        organiser, invitation = organise(swarm)
        friends = [swarm.peer(name, invitation).start() for name in ("ann", "bob")]
        swarm.until("three peers", lambda: all(peer.heard(PeerJoined) for peer in friends))
        rounds = swarm.whole(organiser, *friends)
        swarm.equal(rounds, organiser, *friends)
        assert organiser.status()["founders_vote_until"] is None


@pytest.mark.slow
def test_only_listed_peers_get_into_a_run_with_a_list(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        listed = [swarm.place(name) for name in ("organiser", "guest")]
        names = []
        for folder in listed:
            swarm.command(folder, "id")
            identity = load_identity(folder)
            assert identity is not None
            names.append(identity.peer_id)
        swarm.run_file.write_text(f"allowlist = {sorted(names)}\n" + ADMISSION.format("allowlist") + TINY_RUN)
        organiser, invitation = organise(swarm)
        guest = swarm.peer("guest", invitation).start()
        assert "admits only listed peers" in turned_away(swarm, "beggar", invitation)
        signed = open_manifest(swarm.manifest.read_bytes())
        intruder = Identity.generate()
        assert "admits only listed peers" in trio.run(refused, signed, read_invitation(invitation), intruder, b"")
        rounds = swarm.whole(organiser, guest)
        swarm.equal(rounds, organiser, guest)
        assert Hash(signed.run).hex() == guest.status()["run"]
