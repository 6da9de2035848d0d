"""A run of 200 peers and 10 000 rounds, as its folder and the status of a peer tell it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

from peer.control.client import Stamped
from peer.control.curves import AnswersOfRound, RewardedAnswer, RunCurves
from peer.control.history import HeldOut, Round, RunHistory
from protocol.chain.credit import Credit
from protocol.chain.progress import RunProgress
from protocol.events.events import EvalLoss
from protocol.events.status import PeerStatus, SwarmPeer
from protocol.formatting import plain
from protocol.run.invitation import make_invitation
from protocol.run.manifest import demo_manifest, sign
from protocol.run.sections import AboutSection, Goal, Unit
from protocol.wire.identity import Identity, PeerId

ROUNDS, PEERS = 10_000, 200
ORGANISER = Identity.from_seed(b"o" * 32)
ABOUT = AboutSection(
    description="A small model that explains programs, for schools that want to run it on their own computers.",
    url="https://library.example/model",
    licence="Apache-2.0",
)
SIGNED = sign(
    ORGANISER,
    demo_manifest().manifest.model_copy(update={"name": "Little library", "organiser": ORGANISER.peer_id, "about": ABOUT}),
)
NAMES = "Ada Grace Alan Edsger Barbara Donald Radia Leslie Katherine Dennis Frances Ken Hedy Rozsa Margaret John".split()


TEAMS = ("", "Night owls", "Schools of Ghent", "")
"""Teams of the peers, in turn; half of them have none."""


def peer_id(number: int) -> PeerId:
    return Identity.from_seed(number.to_bytes(32, "big")).peer_id


def wobble(number: int) -> float:
    """Return noise between -1 and 1, the same on every computer."""
    return random.Random(number).uniform(-1, 1)


def loss_at(round: int) -> float:
    return 2.1 + 7.0 * math.exp(-round / 90) + 2.2 * math.exp(-round / 2600) + 0.07 * wobble(round)


def held_out_at(round: int) -> HeldOut:
    loss = loss_at(round) + 0.16 + 0.02 * wobble(round)
    return HeldOut(loss, {"guides": loss + 0.2, "code": loss - 0.6})


def sample_at(round: int) -> dict[str, str]:
    words = ["the", "peers", "agree", "on", "a", "record", "and", "each", "of", "them", "keeps", "its", "state"]
    chosen = random.Random(round).choices(words, k=40)
    return {"Every peer ": " ".join(chosen[:20]), "def test_": "_".join(chosen[20:30]) + "() -> None:↵    assert True"}


def history(folder: Path, rounds: int = ROUNDS, peers: int = PEERS, every: int = 50) -> RunHistory:
    """Return a history of `rounds` records of `peers` members; the held-out loss is measured after every `every` rounds."""
    found = RunHistory(SIGNED, folder)
    members = [
        max(2, min(peers, round(peers * (0.9 - 0.75 * math.exp(-at / 3000) + 0.05 * math.sin(at / 160)) + 4 * wobble(at))))
        for at in range(rounds)
    ]
    found.rounds = [
        Round(
            at + 1,
            (at + 1) * 1_900_000,
            members[at],
            loss_at(at),
            {"guides": loss_at(at) + 0.25, "code": loss_at(at) - 0.7, "tests": loss_at(at) + 0.1},
            None,
        )
        for at in range(rounds)
    ]
    found.ledger.credits = {
        peer_id(number): Credit(rounds - 30 * number, 1_900_000 * rounds // (number + 3)) for number in range(peers)
    }
    goal = Goal(Unit.TOKENS, 25_000_000_000, 0.2)
    found.progress = RunProgress(goal, rounds, 1_900_000 * rounds)
    found.names = {peer_id(number): swarm_peer(number).name for number in range(peers)}
    found.teams = {peer_id(number): swarm_peer(number).team for number in range(peers)}
    for at in range(every, rounds + 1, every):
        measure(found, at, held_out_at(at))
        found.curves.samples.add(1e9 + at, at, peer_id(at % peers), sample_at(at))
    return found


def measure(history: RunHistory, rounds: int, held_out: HeldOut) -> None:
    """Tell the history a held-out loss."""
    history.apply(Stamped(1e9 + rounds, 0.0, EvalLoss(rounds, held_out.loss, peer_id(0), dict(held_out.losses))))


def swarm_peer(number: int) -> SwarmPeer:
    pace = 900.0 * 1.02**number
    return SwarmPeer(
        peer=peer_id(number),
        name=NAMES[number % len(NAMES)].lower() + (f"-{number}" if number >= len(NAMES) else ""),
        role="seed" if number % 17 == 16 else "trainer",
        phase="computing",
        round=ROUNDS,
        steps=3,
        tokens_per_s=0.0 if number % 17 == 16 else pace,
        liveness="alive",
        heard_s=1.0,
        version="0.1.0",
        addresses=[f"/ip4/198.51.100.{number}/tcp/4001"],
        link="direct",
        team=TEAMS[number % len(TEAMS)],
    )


def status(peers: int = PEERS, **changes: object) -> PeerStatus:
    me = peer_id(0)
    found = PeerStatus(
        peer=me,
        name="monitor",
        run=SIGNED.run.hex(),
        run_name=SIGNED.manifest.name,
        role="seed",
        phase="seeding",
        why_idle="",
        why_detail="",
        version="0.1.0",
        pid=1,
        uptime_s=10.0,
        round=ROUNDS,
        swarm=[swarm_peer(number) for number in range(1, peers)],
        goal_left_s=5.2 * 86_400,
        run_tokens_per_s=21_400.0,
        invitation=make_invitation(
            SIGNED.run,
            ORGANISER.peer_id,
            [f"/ip4/203.0.113.7/tcp/4001/p2p/{me}", f"/ip4/198.51.100.9/tcp/4001/p2p/{peer_id(9)}"],
        ),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def hostile(folder: Path, text: str) -> tuple[RunHistory, PeerStatus]:
    """Return a run in which everybody who may choose a text has chosen this one."""
    known = history(folder, 40, 4, 10)
    known.rounds = [replace(each, losses={text: 1.0, "guides": 2.0}) for each in known.rounds]
    known.names, known.teams = {peer_id(3): plain(text)}, {peer_id(3): text}  # as a log might have it
    known.curves = RunCurves()
    measure(known, 40, HeldOut(2.0, {text: 2.0, "guides": 1.0}))
    known.curves.samples.add(1.0, 20, text, {text: text, "def ": text})
    known.curves.samples.add(2.0, 40, text, {text: text, "def ": text})
    known.curves.answers = AnswersOfRound(39, RewardedAnswer(1.0, text, text), RewardedAnswer(0.5, text, text))
    about = AboutSection.model_construct(description=text, licence=text, url=text)
    manifest = SIGNED.manifest.model_copy(update={"name": text, "about": about})
    swarm = [replace(swarm_peer(number), name=text, role=text, team=text) for number in (1, 2)]
    known.signed = replace(SIGNED, manifest=manifest)
    return known, status(4, name=text, team=text, swarm=swarm)
