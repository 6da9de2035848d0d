"""Facts that the page and its JSON file tell, each of bounded length and without characters that move or turn text.

Strangers write the names of peers, and the organiser the name of the run.  The page tells a peer's name, ID, role, pace and
contribution, which every peer of the run sees and the record chain keeps.  It never tells an address, except this peer's own
in the invitation, nor the activity of a peer, which would show its owner's habits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from peer.addresses import names_only_local
from peer.control.curves import AnswersOfRound, StepBack
from peer.control.history import HeldOut, Round, RunHistory, curve
from peer.control.ledger import ledger_of, team_credits, with_audits
from peer.formatting import copies
from peer.joining.purpose import purpose_lines
from protocol.chain.progress import data_total
from protocol.events.status import PeerStatus, SwarmPeer
from protocol.formatting import plain
from protocol.run.invitation import make_invitation, read_invitation
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
"""Number of listed peers, and of listed contributors."""
CREDIT = ("peer", "rounds", "tokens", "share", "accepted_tokens", "audited_tokens", "credited_tokens")
"""Fields of a contributor besides its name and team."""
TEXT_CHARACTERS = 500
LAST_SECOND = 253_402_300_799
"""End of the year 9999, in unix seconds."""
HERE = ("alive", "suspect")
"""States of peers that count as being here."""


PageFacts = dict[str, Any]
"""Object of the JSON file, which docs/guides/programs.md describes; the template reads the same.

`run` has sentences (model, data, rate), the organiser's text or "", and None for unknown figures.  `peers_here` is None
if the peer that makes the page is not running.  Lists have only the first entries, and the counts give the full numbers.
"""


def gather(history: RunHistory, status: PeerStatus | None, now: float) -> PageFacts:
    """Return the facts.

    status: the status of the running peer of this run; None if it does not run.  now: seconds since 1970.
    """
    signed, here = history.signed, _here(status) if status is not None else []
    names = {**history.names, **{each["peer"]: each["name"] for each in here}}
    teams = history.teams | (status.teams() if status is not None else {})
    counted = ledger_of(history.ledger.credits, len(history.rounds))
    contributors = [
        {
            "name": names.get(each["peer"], ""),
            "team": team_named(teams.get(each["peer"], "")),
            **{name: each[name] for name in CREDIT},
        }
        for each in with_audits(counted["members"], status.swarm if status is not None else ())
    ]
    rl = signed.manifest.rl
    reads_text = rl is None or rl.warm_rounds > 0  # otherwise the held-out loss is measured on a text that nobody trains on
    credited_teams = team_credits(counted, {each["peer"]: each["team"] for each in contributors})
    return {
        "at": _utc(now),
        "run": _run(history, status),
        "curves": _curves(history.rounds, history.held_out if reads_text else {}, history.steps_back),
        "samples": [
            {
                "rounds": each.rounds,
                "peer": plain(each.by, 64),
                "name": names.get(each.by, ""),
                "completions": {
                    plain(prompt, TEXT_CHARACTERS): plain(text, TEXT_CHARACTERS) for prompt, text in each.completions.items()
                },
            }
            for each in history.curves.samples.states
        ],
        "answers": _answers(history.curves.answers),
        "peers_here": len(here) if status is not None else None,
        "peers": here[:MOST_PEERS],
        "contributor_count": len(contributors),
        "contributors": contributors[:MOST_PEERS],
        **{name: sum(each[name] for each in contributors) for name in ("audited_tokens", "credited_tokens")},
        "team_count": len(credited_teams),
        "teams": credited_teams[:MOST_PEERS],
        # empty unless everybody may join and the peer that makes the page can be reached
        "invitation": own_invitation(status) if status is not None else "",
    }


def _utc(at: float) -> str:
    """Return a time that may come from a damaged log."""
    return datetime.fromtimestamp(min(max(0.0, at), LAST_SECOND), UTC).isoformat(timespec="seconds")


def _run(history: RunHistory, status: PeerStatus | None) -> dict[str, Any]:
    signed, progress = history.signed, history.progress
    manifest = signed.manifest
    about, said = manifest.about or AboutSection(), dict(purpose_lines(manifest))
    unit, done, total = progress.goal.unit.value, progress.done, progress.goal.total
    if of_data := data_total(manifest, progress):
        unit, done, total = Unit.TOKENS.value, progress.tokens, of_data
    return {
        "id": signed.run.hex(),
        "name": plain(manifest.name, 64),
        "description": plain(about.description, TEXT_CHARACTERS),
        "licence": plain(about.licence, 64),
        "url": plain(about.url, 200) if about.url.startswith("https://") else "",
        "organiser": manifest.organiser,
        "model": plain(said["trains"], TEXT_CHARACTERS),
        "data": plain(said["reads"], TEXT_CHARACTERS),
        "rate": plain(said["rate"], TEXT_CHARACTERS),
        "unit": unit,
        "done": done,
        "total": total,
        "ended": progress.is_over or (status is not None and status.run_ended),
        "left_s": _finite(status.goal_left_s) if status is not None else None,
        "rounds": progress.rounds,
        "tokens": progress.tokens,
        "tokens_per_s": _finite(status.run_tokens_per_s) if status is not None else None,
        "copies": copies(status.copies, for_all=True) if status is not None and status.copies is not None else "",
    }


def _answers(answers: AnswersOfRound | None) -> list[dict[str, Any]]:
    if answers is None:
        return []
    both = (("best", answers.best), ("typical", answers.typical))
    texts = [{"prompt": plain(each.prompt, TEXT_CHARACTERS), "text": plain(each.text, TEXT_CHARACTERS)} for _, each in both]
    return [
        {"kind": kind, "round": answers.round, "reward": each.reward, **text}
        for (kind, each), text in zip(both, texts, strict=True)
    ]


def _curves(rounds: Sequence[Round], held_out: Mapping[int, HeldOut], steps_back: Sequence[StepBack]) -> dict[str, Any]:
    """Return the curves: `sources` has the training loss by source, and is empty without several sources.

    steps_back: times at which rounds were given up, of which the curves have no points.
    """

    def points(value: Callable[[Round], float | None]) -> list[dict[str, Any]]:
        return [asdict(each) for each in curve(rounds, value, MOST_POINTS)]

    def of_source(name: str) -> Callable[[Round], float | None]:
        return lambda each: each.losses.get(name)

    measured = [
        {
            "rounds": at,
            "tokens": rounds[at - 1].tokens,
            "loss": each.loss,
            "losses": {plain(name): loss for name, loss in [*each.losses.items()][:MOST_SOURCES] if isfinite(loss)},
        }
        for at, each in held_out.items()
    ]
    step = max(1, -(-len(measured) // MOST_POINTS))
    names = list(dict.fromkeys(name for each in rounds for name in each.losses))[:MOST_SOURCES]
    return {
        "loss": points(lambda each: each.loss),
        "held_out": measured[::-1][::step][::-1],  # spread evenly, with the newest
        "sources": {plain(name): points(of_source(name)) for name in names},
        "reward": points(lambda each: each.reward),
        "members": points(lambda each: float(each.members)),
        "steps_back": [{**asdict(each), "at": _utc(each.at)} for each in steps_back],
    }


def _here(status: PeerStatus) -> list[dict[str, Any]]:
    """Return the peers that are here, the fastest first."""
    seen: list[PeerStatus | SwarmPeer] = [status, *(each for each in status.swarm if each.liveness in HERE)]
    here = [
        {
            "peer": each.peer,
            "name": plain(each.name),
            "role": plain(each.role, 16),
            "rounds": each.round,
            "tokens_per_s": _finite(each.tokens_per_s) or 0.0,
        }
        for each in seen
    ]
    return sorted(here, key=lambda each: (-each["tokens_per_s"], each["peer"]))


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
