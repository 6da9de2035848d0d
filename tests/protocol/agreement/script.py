"""Scripts of a round, in the manner of etcd's interaction tests: commands, and below each what the peers then do.

A script consists of blocks: a command, a line `----`, and the lines that the command brings about.  Comments and blank lines
stay as they are.  `play` carries out the commands and returns the script with what really happened, so that a test compares
the two; with REWRITE=1 in the environment the test writes the result into the file instead.

Peers are named by their turns: `a` proposes in attempt 0, `b` in attempt 1.  Joiners, which have no vote, are x, y and z.
Plans are P1, P2 and so on, records R1, R2, in the order in which they turn up.  Nothing is random: statements are delivered
in the order in which they were sent.  Every certificate is verified, and the parliament's witness compares what each peer
says with what it said and kept before.

    electors N [joiners N] [versions]            begin; versions: members assemble different chunks
    ready [PEERS] [life N]                       they say READY, and everybody alive hears it
    hear PEERS of PEER                           those alone hear the READY of PEER
    deliver [KINDS] [from PEERS] [to PEERS]      statements under way, and none that follows; without words everything
    drop [KINDS] [from PEERS] [to PEERS]         statements under way are lost
    tick SECONDS                                 time passes, and everything is delivered
    kill|leave|restart|near|arrive PEERS         restart: with the disk of before; near: a round behind, about to arrive
    forget                                       whoever restarts later hears no READY that was said before
    mute PEERS                                   they look alive, and speak only by the script
    call N [without PEERS] from PEER to PEERS    a muted peer sends a view change
    lie                                          all are ready, and the proposer of attempt 0 speaks by the script
    propose plan N|record NAME to PEERS          it proposes its Nth plan, or a record with averages of this name
    certify NAME to PEERS                        it shows them the prevotes that it has heard for that record
    lose PEER                                    the next member averages the chunks of PEER
    disprove PEER                                PEER is gone, and everybody has proof that it averaged wrongly
    refuse RECORD                                nobody can account for the averages of this record
    show                                         what binds everybody alive, and what it has committed
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from protocol.agreement.ballot import held_in
from protocol.agreement.events import (
    AverageDisproved,
    BeginExchange,
    Committed,
    FinishCompute,
    Forward,
    ObtainResult,
    Persist,
    Reject,
    RoundEffect,
    Send,
)
from protocol.allreduce.assignment import plan_hash
from protocol.chain.records import record_hash, verify_commit
from protocol.wire.envelope import Body
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Certificate,
    Commit,
    Finish,
    Lock,
    LockName,
    Plan,
    PrevoteCertificate,
    Proposal,
    Record,
    RecordProposal,
    Report,
    Step,
    ViewChange,
    Vote,
    unpack,
)
from tests.protocol.agreement.lying_proposer import LyingProposer
from tests.protocol.agreement.parliament import Parliament, Seat, settings
from tests.protocol.council import RUN

KINDS: dict[str, tuple[type[Body], Step | None]] = {
    "view-change": (ViewChange, None),
    "proposal": (Proposal, None),
    "record-proposal": (RecordProposal, None),
    "prevote": (Vote, Step.FIRST),
    "certificate": (PrevoteCertificate, None),
    "precommit": (Vote, Step.SECOND),
    "commit": (Commit, None),
    "lock": (Lock, None),
    "report": (Report, None),
    "finish": (Finish, None),
}
WORDS = {kind.KIND: word for word, (kind, step) in KINDS.items() if step is None}
JOINERS = "xyzuvw"
LETTERS = "abcdefghijklmnop"


class TalkingParliament(Parliament):
    """A parliament that delivers in order, and tells which effects were performed."""

    def __init__(self, electors: int, joiners: int, heard: Callable[[PeerId, RoundEffect], None], *, versions: bool) -> None:
        super().__init__(electors, joiners, versions=versions)
        self._heard = heard

    def deliver(self) -> None:
        while self.queue:
            self.pass_first()

    def pass_first(self) -> None:
        """Deliver the statement that was sent first."""
        sender, to, body = self.queue.pop(0)
        if self.seats[to].alive:
            self.hand_over(sender, self.seats[to], body)

    def perform(self, seat: Seat, effects: list[RoundEffect]) -> None:
        for effect in effects:
            self._heard(seat.me, effect)
            super().perform(seat, [effect])


class Script:
    """The state of a script that is played: its parliament, and the names of peers, plans and records."""

    def __init__(self) -> None:
        self._parliament = TalkingParliament(0, 0, self._note, versions=False)
        self._liar: LyingProposer | None = None
        self._names: dict[str, str] = {}
        self._peers: dict[str, PeerId] = {}
        self._objects: dict[bytes, str] = {}
        self._records: dict[str, Record] = {}
        self._lines: dict[str, list[PeerId]] = defaultdict(list)

    def carry_out(self, command: str) -> list[str]:
        """Carry out one command; return the lines that it brings about."""
        self._lines.clear()
        name, *words = command.split()
        getattr(self, f"_do_{name}")(words)
        return [f"{self._named(peers)}: {line}" if peers else line for line, peers in self._lines.items()]

    # -- commands -----------------------------------------------------------------------------------------------------

    def _do_electors(self, words: list[str]) -> None:
        electors, joiners = int(words[0]), int(words[words.index("joiners") + 1]) if "joiners" in words else 0
        parliament = TalkingParliament(electors, joiners, self._note, versions="versions" in words)
        self._parliament, base = parliament, parliament.base
        voters = base.in_turn(base.electors)
        others = [peer for peer in parliament.seats if peer not in voters]
        self._peers = dict(zip(LETTERS, voters, strict=False)) | dict(zip(JOINERS, others, strict=False))
        self._names = {peer: name for name, peer in self._peers.items()}

    def _do_ready(self, words: list[str]) -> None:
        life = int(words.pop()) if "life" in words else 1
        self._parliament.ready(*self._of(word for word in words if word != "life"), life=life)

    def _do_hear(self, words: list[str]) -> None:
        *hearers, _, name = words
        speaker = self._peers[name]
        self._parliament.say_ready(speaker, *self._of(hearers))

    def _do_deliver(self, words: list[str]) -> None:
        if not words:
            self._parliament.deliver()
            return
        chosen, rest = self._sorted_out(words)
        self._parliament.queue = [*chosen, *rest]
        for _ in chosen:
            self._parliament.pass_first()

    def _do_drop(self, words: list[str]) -> None:
        self._parliament.queue = self._sorted_out(words)[1]

    def _do_tick(self, words: list[str]) -> None:
        self._parliament.run(float(words[0]))

    def _do_kill(self, words: list[str]) -> None:
        for peer in self._of(words):
            self._parliament.crash(peer)

    def _do_leave(self, words: list[str]) -> None:
        for peer in self._of(words):
            self._parliament.leave(peer)

    def _do_restart(self, words: list[str]) -> None:
        for peer in self._of(words):
            self._parliament.restart(peer)

    def _do_near(self, words: list[str]) -> None:
        self._parliament.near.update(self._of(words))

    def _do_arrive(self, words: list[str]) -> None:
        self._parliament.near.difference_update(self._of(words))

    def _do_forget(self, _words: list[str]) -> None:
        self._parliament.forget_readys()

    def _do_mute(self, words: list[str]) -> None:
        for peer in self._of(words):
            self._parliament.make_puppet(peer)

    def _do_call(self, words: list[str]) -> None:
        options = _options(words[1:])
        (speaker,) = self._of(options["from"])
        absent = sorted(self._of(options.get("without", [])))
        self._parliament.say(speaker, self._parliament.view_change(int(words[0]), absent=absent), *self._of(options["to"]))

    def _do_lie(self, _words: list[str]) -> None:
        self._liar = LyingProposer(self._parliament)

    def _do_propose(self, words: list[str]) -> None:
        assert self._liar is not None
        what, which = words[:2]
        body = self._liar.proposal(int(which)) if what == "plan" else self._liar.record_proposal(which.encode())
        self._liar.says(body, *self._of(_options(words[2:])["to"]))

    def _do_certify(self, words: list[str]) -> None:
        assert self._liar is not None
        proof = self._liar.proof(self._liar.record_proposal(words[0].encode()))
        self._liar.says(proof, *self._of(_options(words[1:])["to"]))

    def _do_lose(self, words: list[str]) -> None:
        self._parliament.lost.update(self._of(words))

    def _do_disprove(self, words: list[str]) -> None:
        (liar,) = self._of(words)
        record_proposal = next(
            effect.body
            for effect in self._parliament.performed
            if isinstance(effect, Send) and isinstance(effect.body, RecordProposal)
        )
        self._parliament.crash(liar)
        self._parliament.lie = record_proposal.index[0].hash
        for seat in self._alive():
            self._parliament.tell(seat, AverageDisproved(liar, 0, record_proposal.index[0].hash))

    def _do_refuse(self, words: list[str]) -> None:
        self._parliament.refused.update(self._records[name].result_root for name in words)

    def _do_show(self, _words: list[str]) -> None:
        for seat in self._alive():
            kept, told = seat.kept, []
            if kept is not None:
                told = [f"attempt {kept.attempt}"]
                told += [f"prevoted {self._name(kept.first)}"] if kept.first is not None else []
                told += [f"precommitted {self._name(kept.second)}"] if kept.second is not None else []
                told += [f"locked on {self._record(kept.lock.record)}"] if kept.lock is not None else []
                told += [f"locked in part on {self._record(kept.reduced.record)}"] if kept.reduced is not None else []
            told += [f"committed {self._record(seat.committed.record)}"] if seat.committed is not None else []
            self._lines[", ".join(told) or "nothing"].append(seat.me)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _note(self, peer: PeerId, effect: RoundEffect) -> None:
        text = self._effect(effect)
        if text and peer not in self._lines[text]:
            self._lines[text].append(peer)

    def _effect(self, effect: RoundEffect) -> str:
        """The line of an effect; empty for those that a script does not show."""
        match effect:
            case Send(to, body):
                return f"{self._body(body)} -> {self._named(to)}"
            case Forward(to, _, raw):
                sender, body, _ = unpack(raw, RUN)
                return f"forwards {self._body(body)} of {self._names[sender]} -> {self._names[to]}"
            case BeginExchange(plan):
                return f"exchanges by {self._plan(plan)}"
            case FinishCompute():
                return "stops computing"
            case ObtainResult(record=record):
                return f"obtains {self._record(record)}"
            case Committed(commit):
                verify_commit(settings(), commit, self._parliament.base)
                return f"commits {self._record(commit.record)} by {self._certificate(commit.certificate)}"
            case Reject(sender, what, reason):
                return f"rejects {WORDS.get(what, what)} of {self._names[sender]}: {reason}"
            case Persist():
                return ""
            case _:
                return type(effect).__name__

    def _body(self, body: Body) -> str:
        match body:
            case ViewChange():
                held = held_in(self._parliament.base.electors, body.held) or ()
                text = f"view-change {self._ballot(body.attempt, body.absent)}, holds {self._named(held) or 'nothing'}"
                text += f", plan {self._name(body.plan)}" if body.plan is not None else ""
                text += f", lock {self._lock(body.lock)}" if body.lock is not None else ""
                return text + (f", lock of a part {self._lock(body.reduced)}" if body.reduced is not None else "")
            case Proposal():
                return f"proposal {self._ballot(body.attempt, body.absent)} of {self._plan(body.plan)}"
            case RecordProposal():
                carried = " with its certificate" if body.proof is not None else ""
                ballot = self._ballot(body.attempt, body.absent)
                owners, signers = body.provenance.owners, body.provenance.signers
                instead = "".join(self._names[body.record.members[signer].peer] for signer in signers)
                averaged = f", averaged by {instead}" if signers != owners else ""
                return f"record-proposal {ballot} of {self._record(body.record)}{carried}{averaged}"
            case Vote():
                kind = "prevote" if body.step is Step.FIRST else "precommit"
                return f"{kind} {self._ballot(body.attempt, body.absent)} for {self._name(body.record_hash)}"
            case PrevoteCertificate():
                return f"certificate of {self._name(body.record_hash)}: {self._certificate(body.certificate)}"
            case Commit():
                return f"commit {self._record(body.record)}"
            case Lock():
                return f"lock on {self._record(body.record)}"
            case _:
                return WORDS.get(body.KIND, body.KIND)

    # -- names --------------------------------------------------------------------------------------------------------

    def _of(self, names: Iterable[str]) -> list[PeerId]:
        return [self._peers[name] for name in names]

    def _named(self, peers: Iterable[str]) -> str:
        return " ".join(sorted(self._names[peer] for peer in peers))

    def _name(self, hash: bytes, kind: str = "R", told: str = "") -> str:
        """The name of a plan or a record; what it is, when it turns up."""
        if hash not in self._objects:
            count = sum(name.startswith(kind) for name in self._objects.values())
            self._objects[hash] = f"{kind}{count + 1}"
            return f"{self._objects[hash]}{told}"
        return self._objects[hash]

    def _plan(self, plan: Plan) -> str:
        owners = "".join(self._names[plan.members[owner].peer] for owner in plan.owners)
        members = self._named(member.peer for member in plan.members)
        return self._name(plan_hash(plan), "P", f" ({members}; chunks of {owners})")

    def _record(self, record: Record) -> str:
        name = self._name(record_hash(record), "R", f" ({self._named(member.peer for member in record.members)})")
        self._records[name.split()[0]] = record
        return name

    def _ballot(self, attempt: int, absent: Iterable[str]) -> str:
        return f"{attempt} without {self._named(absent)}" if absent else str(attempt)

    def _lock(self, name: LockName) -> str:
        return f"{self._name(name.record_hash)} of {self._ballot(name.attempt, name.absent)}"

    def _certificate(self, certificate: Certificate) -> str:
        ballot = self._ballot(certificate.attempt, certificate.absent)
        return f"{self._named(vote.peer for vote in certificate.votes)} in {ballot}"

    # -- statements under way -----------------------------------------------------------------------------------------

    def _sorted_out(self, words: list[str]) -> tuple[list[tuple[PeerId, PeerId, Body]], list[tuple[PeerId, PeerId, Body]]]:
        """The statements under way that these words mean, and the others."""
        kinds, options = [KINDS[word] for word in words if word in KINDS], _options(words)
        senders, hearers = ({*self._of(options.get(side, self._peers))} for side in ("from", "to"))

        def fits(statement: tuple[PeerId, PeerId, Body]) -> bool:
            sender, to, body = statement
            of_kind = not kinds or any(
                isinstance(body, kind) and step in (None, getattr(body, "step", None)) for kind, step in kinds
            )
            return of_kind and sender in senders and to in hearers

        queue = self._parliament.queue
        return [each for each in queue if fits(each)], [each for each in queue if not fits(each)]

    def _alive(self) -> list[Seat]:
        return [self._parliament.seats[peer] for peer in self._peers.values() if self._parliament.seats[peer].alive]


def _options(words: list[str]) -> dict[str, list[str]]:
    """The peers after `from`, `to` and `without`."""
    found, last = dict[str, list[str]](), list[str]()
    for word in words:
        if word in ("from", "to", "without"):
            last = found[word] = []
        else:
            last.append(word)
    return found


def play(text: str) -> str:
    """Return the script with the lines that its commands really bring about."""
    script, played, expected = Script(), list[str](), False
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            played.append(line)
            expected = False
        elif line == "----":
            expected = True
        elif not expected:
            if played and played[-1] and not played[-1].startswith("#"):
                played.append("")
            played += [line, "----", *script.carry_out(line)]
    return "\n".join(played) + "\n"
