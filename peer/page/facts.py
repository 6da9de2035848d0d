"""Facts that the page and its JSON file tell, each of bounded length and without characters that move or turn text.

Strangers write the names of peers, and the organiser the name of the run.  Of a peer the page tells its name, ID, role,
pace and contribution, which every peer of the run sees and the record chain keeps; never an address, except this peer's own
in the invitation, nor what a peer is doing, which would show its owner's habits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from peer.addresses import names_only_local
from peer.control.curves import AnswersOfRound, StepBack
from peer.control.history import CurvePoint, HeldOut, Round, RunHistory, curve
from peer.control.ledger import TeamCredit, ledger_of, team_credits
from peer.formatting import copies
from peer.joining.purpose import purpose_lines
from protocol.chain.progress import data_total
from protocol.events.status import PeerStatus
from protocol.formatting import plain
from protocol.run.invitation import make_invitation, read_invitation
from protocol.run.manifest import SignedManifest
from protocol.run.sections import AboutSection, Unit
from protocol.team import team_named
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

MOST_POINTS = 300
"""Points of a curve: more than a screen of a phone has columns, and fewer than a reader can tell apart."""
MOST_SOURCES = 6
"""Sources with a curve each; more lines cannot be told apart."""
MOST_PEERS = 500
"""Peers, and contributors, that are listed."""
TEXT_CHARACTERS = 500
LAST_SECOND = 253_402_300_799
"""End of the year 9999, in unix seconds."""
HERE = ("alive", "suspect")
"""States of peers that count as being here."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The run.  model, data, rate: sentences.  done, total: in `unit`.  left_s: seconds to the end; None if unknown.

    description, licence, url: as the organiser wrote them, or empty; the address begins with https://.
    rounds, tokens: of all members so far.  tokens_per_s: of all members in the last round; None if unknown.
    copies: a phrase about the copies of the data, or empty.
    """

    id: str
    name: str
    description: str
    licence: str
    url: str
    organiser: str
    model: str
    data: str
    rate: str
    unit: str
    done: int
    total: int
    ended: bool
    left_s: float | None
    rounds: int
    tokens: int
    tokens_per_s: float | None
    copies: str


@dataclass(frozen=True)
class HeldOutPoint:
    """Held-out loss of the state after some rounds, as a peer measured it; losses: by source."""

    rounds: int
    tokens: int
    loss: float
    losses: dict[str, float]


@dataclass(frozen=True)
class StepBackFacts:
    """A time (UTC) at which this peer gave up `abandoned` rounds, and went back to the state after `rounds` rounds.

    tokens: read by all members until that state.
    """

    at: str
    rounds: int
    tokens: int
    abandoned: int


@dataclass(frozen=True)
class Curves:
    """Curves of the run.  sources: training loss by source; empty without several sources.  members: of each round.

    steps_back: times at which rounds were given up, of which the curves have no points.
    """

    loss: list[CurvePoint]
    held_out: list[HeldOutPoint]
    sources: dict[str, list[CurvePoint]]
    reward: list[CurvePoint]
    members: list[CurvePoint]
    steps_back: list[StepBackFacts]


@dataclass(frozen=True)
class SampledFacts:
    """Completions of the run's prompts, by prompt, after `rounds` rounds.  peer, name: of the member that claims them."""

    rounds: int
    peer: str
    name: str
    completions: dict[str, str]


@dataclass(frozen=True)
class AnswerFacts:
    """Answer in a rollout of which the writer of the page has learned in a round.  kind: best or typical, by reward."""

    kind: str
    round: int
    reward: float
    prompt: str
    text: str


@dataclass(frozen=True)
class PeerFacts:
    """A peer that is here.  rounds: number of rounds that it has committed.  tokens_per_s: last known training rate."""

    peer: str
    name: str
    role: str
    rounds: int
    tokens_per_s: float


@dataclass(frozen=True)
class CreditedPeer:
    """A peer in the record chain.

    share: of all tokens that were trained, or made for rollouts that were learned from.  accepted_tokens: the latter.
    team: empty without one.
    """

    peer: str
    name: str
    rounds: int
    tokens: int
    share: float
    accepted_tokens: int
    team: str


@dataclass(frozen=True, kw_only=True)
class PageFacts:
    """Facts of one page.  at: time of its making (UTC).  peers_here: None if the peer that makes the page is not running.

    samples: ascending by rounds.  answers: none unless this peer learns from rollouts.  peers, contributors, teams: the
    first of them; the counts say how many there are.  invitation: empty unless everybody may join and the peer that makes
    the page can be reached.
    """

    at: str
    run: RunSummary
    curves: Curves
    samples: list[SampledFacts]
    answers: list[AnswerFacts]
    peers_here: int | None
    peers: list[PeerFacts]
    contributor_count: int
    contributors: list[CreditedPeer]
    team_count: int
    teams: list[TeamCredit]
    invitation: str

    def to_fields(self) -> dict[str, Any]:
        """Return the object of the JSON file."""
        return asdict(self)


# ------------------------------------------------------------------------------------------------------------------------


def gather(history: RunHistory, status: PeerStatus | None, now: float) -> PageFacts:
    """Return the facts.  status: of the running peer of this run; None if it does not run.  now: seconds since 1970."""
    signed, here = history.signed, _here(status) if status is not None else []
    names = {**history.names, **{each.peer: each.name for each in here}}
    teams = history.teams | (status.teams() if status is not None else {})
    counted = ledger_of(history.ledger.credits, len(history.rounds))
    contributors = [
        CreditedPeer(
            each["peer"],
            names.get(each["peer"], ""),
            each["rounds"],
            each["tokens"],
            each["share"],
            each["accepted_tokens"],
            team_named(teams.get(each["peer"], "")),
        )
        for each in counted["members"]
    ]
    rl = signed.manifest.rl
    reads_text = rl is None or rl.warm_rounds > 0  # else the held-out loss is of a text that nobody trains on
    credited_teams = team_credits(counted, {each.peer: each.team for each in contributors})
    return PageFacts(
        at=_utc(now),
        run=_run(signed, history, status),
        curves=_curves(history.rounds, history.held_out if reads_text else {}, history.steps_back),
        samples=[
            SampledFacts(
                each.rounds,
                plain(each.by, 64),
                names.get(each.by, ""),
                {plain(prompt, TEXT_CHARACTERS): plain(text, TEXT_CHARACTERS) for prompt, text in each.completions.items()},
            )
            for each in history.curves.samples.states
        ],
        answers=_answers(history.curves.answers),
        peers_here=len(here) if status is not None else None,
        peers=here[:MOST_PEERS],
        contributor_count=len(contributors),
        contributors=contributors[:MOST_PEERS],
        team_count=len(credited_teams),
        teams=credited_teams[:MOST_PEERS],
        invitation=own_invitation(status) if status is not None else "",
    )


def _utc(at: float) -> str:
    """Return a time that may come from a damaged log."""
    return datetime.fromtimestamp(min(max(0.0, at), LAST_SECOND), UTC).isoformat(timespec="seconds")


def _run(signed: SignedManifest, history: RunHistory, status: PeerStatus | None) -> RunSummary:
    manifest, progress = signed.manifest, history.progress
    about, said = manifest.about or AboutSection(), dict(purpose_lines(manifest))
    unit, done, total = progress.goal.unit.value, progress.done, progress.goal.total
    if of_data := data_total(manifest, progress):
        unit, done, total = Unit.TOKENS.value, progress.tokens, of_data
    return RunSummary(
        id=signed.run.hex(),
        name=plain(manifest.name, 64),
        description=plain(about.description, TEXT_CHARACTERS),
        licence=plain(about.licence, 64),
        url=plain(about.url, 200) if about.url.startswith("https://") else "",
        organiser=manifest.organiser,
        model=plain(said["trains"], TEXT_CHARACTERS),
        data=plain(said["reads"], TEXT_CHARACTERS),
        rate=plain(said["rate"], TEXT_CHARACTERS),
        unit=unit,
        done=done,
        total=total,
        ended=progress.is_over or (status is not None and status.run_ended),
        left_s=_finite(status.goal_left_s) if status is not None else None,
        rounds=progress.rounds,
        tokens=progress.tokens,
        tokens_per_s=_finite(status.run_tokens_per_s) if status is not None else None,
        copies=copies(status.copies, for_all=True) if status is not None and status.copies is not None else "",
    )


def _answers(answers: AnswersOfRound | None) -> list[AnswerFacts]:
    both = (("best", answers.best), ("typical", answers.typical)) if answers is not None else ()
    number = answers.round if answers is not None else 0
    return [
        AnswerFacts(kind, number, each.reward, plain(each.prompt, TEXT_CHARACTERS), plain(each.text, TEXT_CHARACTERS))
        for kind, each in both
    ]


def _curves(rounds: Sequence[Round], held_out: Mapping[int, HeldOut], steps_back: Sequence[StepBack]) -> Curves:

    def of_source(name: str) -> Callable[[Round], float | None]:
        return lambda each: each.losses.get(name)

    measured = [
        HeldOutPoint(
            at,
            rounds[at - 1].tokens,
            each.loss,
            {plain(name): loss for name, loss in [*each.losses.items()][:MOST_SOURCES] if isfinite(loss)},
        )
        for at, each in held_out.items()
    ]
    step = max(1, -(-len(measured) // MOST_POINTS))
    names = list(dict.fromkeys(name for each in rounds for name in each.losses))[:MOST_SOURCES]
    return Curves(
        loss=curve(rounds, lambda each: each.loss, MOST_POINTS),
        held_out=measured[::-1][::step][::-1],  # spread evenly, with the newest
        sources={plain(name): curve(rounds, of_source(name), MOST_POINTS) for name in names},
        reward=curve(rounds, lambda each: each.reward, MOST_POINTS),
        members=curve(rounds, lambda each: float(each.members), MOST_POINTS),
        steps_back=[StepBackFacts(_utc(each.at), each.rounds, each.tokens, each.abandoned) for each in steps_back],
    )


def _here(status: PeerStatus) -> list[PeerFacts]:
    """Return the peers that are here, the fastest first."""
    own = PeerFacts(status.peer, plain(status.name), status.role, status.round, _finite(status.tokens_per_s) or 0.0)
    others = [
        PeerFacts(each.peer, plain(each.name), plain(each.role, 16), each.round, _finite(each.tokens_per_s) or 0.0)
        for each in status.swarm
        if each.liveness in HERE
    ]
    return sorted([own, *others], key=lambda each: (-each.tokens_per_s, each.peer))


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def own_invitation(status: PeerStatus) -> str:
    """Return the peer's invitation with its own addresses alone; empty if it has none.

    The invitation that the peer gives its owner may name other peers, whose addresses do not belong on a public page.
    Addresses of a local network stay only if there are no others.
    """
    if not status.invitation:
        return ""
    try:
        given = read_invitation(status.invitation)
    except Malformed:
        return ""
    hosts = {address: address.partition("/p2p/")[2].partition("/")[0] for address in given.addresses}
    own = [address for address, peer in hosts.items() if peer == status.peer]  # the first one is at this host and port
    wide = [address for address in own if not names_only_local([address])]
    if not own:
        return ""
    return make_invitation(Hash(given.run), PeerId(given.organiser), wide or own, anchor=given.anchor)
