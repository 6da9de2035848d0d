"""Sequence of all checks: each has a deadline, and no failing check ends the others.

Checks that need the swarm ask the peer that runs here.  If no peer runs, this process visits the swarm itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio

from peer.control.client import ControlClient, ControlError
from peer.daemon.settings import choose
from peer.doctor import checks, corpora
from peer.doctor.checks import Check, CheckResult, flawed, ok, reachable, skewed
from peer.doctor.visit import Findings, Visit, visit
from peer.errors import PeerError
from peer.joining.purpose import adapter_words
from peer.joining.run_source import stored_manifest
from peer.keyfile import KeyfileError, identity_lock, load_or_create_identity
from peer.measurements.speeds import measure_lines, measure_training
from peer.paths import run_dir
from peer.resources.check import check_division, choose_role
from peer.resources.computer import (
    StatePlace,
    available_memory,
    free_gpu_memory,
    shared_bytes,
    state_place,
)
from peer.resources.pace import MeasuredPace, keep_pace, kept_line, kept_pace
from peer.resources.requirements import requirement_problem, this_computer
from peer.resources.room import DiskRoom
from peer.settings.preferences import Preferences
from protocol.events.status import PeerStatus, WhyIdle
from protocol.formatting import amount, clean, line_rate, many, size
from protocol.run.manifest import RunManifest, SignedManifest, demo_manifest
from protocol.run.sections import BUILTIN
from protocol.transport.nat.reachability import AddressVerdict as Reached
from protocol.transport.nat.reachability import Reachability
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from trainer.generate.choice import GeneratorName

# ------------------------------------------------------------------------------------------------------------------------
# Checks by the peer that runs here: it has the port and the identity, and has met other peers.  Blocking.


LEAST_LINE = 250e3
"""Bytes a second; below 2 Mbit/s, an exchange of any model takes long."""


def ask_the_peer(status: PeerStatus, folder: Path) -> Findings:
    """Return the checks that need the swarm, from the running peer's status."""
    found = Findings(signed=stored_manifest(Hash(bytes.fromhex(status.run)), folder))
    ports = sorted({address.split("/")[4] for address in status.addresses if len(address.split("/")) > 4})
    found.checks.append(ok("port", f"{', '.join(ports)}, the running peer's"))
    others = [known for known in status.swarm if known.liveness == "alive"]
    if others:
        found.checks.append(ok("peers", f"{len(others)} live"))
    else:
        remedy = "nothing to do if you are the first; otherwise check that the others run"
        found.checks.append(Check("peers", CheckResult.WARN, "nobody else is here", "at least 1", remedy))
    if status.block_bytes:
        came = ", ".join(f"{size(count)} from {origin}s" for origin, count in status.block_bytes.items() if origin != "disk")
        waits = status.why_idle == WhyIdle.FETCHING_DATA.value
        found.checks.append(
            Check("blocks", CheckResult.WARN, status.why_detail, "a peer or a mirror", corpora.NEED_CORPUS)
            if waits
            else ok("blocks", f"the running peer got {came}")
        )
    if status.clock_skew:
        found.checks.append(skewed(status.clock_skew))
    verdicts = {address: Reached(told) for address, told in status.reachability.items()}
    found.checks += reachable(Reachability(verdicts))
    found.rates = {PeerId(known.peer): known.tokens_per_s for known in others}
    return found


def check_lines(status: PeerStatus, folder: Path) -> Check:
    """Check the lines to some peers, which the running peer measures."""
    try:
        speed = measure_lines(folder, status.run)
    except PeerError as error:
        return flawed("lines", CheckResult.UNKNOWN, clean(error.text, 300), "ask again when the round has begun")
    down, up = speed.down_bytes_per_s, speed.up_bytes_per_s
    slowest, remedy = min(down or LEAST_LINE, up or LEAST_LINE), "stop other programs that use the line, or raise the caps"
    verdict = CheckResult.WARN if slowest < LEAST_LINE else CheckResult.OK
    shown, limit = _rates(up, down), f"at least {line_rate(LEAST_LINE)}"
    return Check("lines", verdict, shown, limit, remedy if slowest < LEAST_LINE else "")


def _rates(up: float, down: float) -> str:
    return f"down {line_rate(down) if down else 'not known yet'}, up {line_rate(up) if up else 'not known yet'}"


# ------------------------------------------------------------------------------------------------------------------------
# The checks as lines for a person, and as one JSON object for a program.


MARKS = {CheckResult.OK: "ok", CheckResult.WARN: "WARN", CheckResult.FAIL: "FAIL", CheckResult.UNKNOWN: "?"}


def may_take_part(checks: Sequence[Check]) -> bool:
    """Return True if no check failed."""
    return all(check.verdict is not CheckResult.FAIL for check in checks)


def fields(checks: Sequence[Check]) -> dict[str, Any]:
    """Return the checks for JSON."""
    return {"ok": may_take_part(checks), "checks": [check.to_fields() for check in checks]}


def lines(checks: Sequence[Check]) -> list[str]:
    """Return a line for each check, a second one with its remedy if any, and the result."""
    width = max((len(check.name) for check in checks), default=0)
    found = list[str]()
    for check in checks:
        limit = f"  ({clean(check.limit, 80)})" if check.limit else ""
        found.append(f"{MARKS[check.verdict]:<5}{check.name:<{width}}  {clean(check.value, 300)}{limit}")
        if check.remedy:
            found.append(f"     {'':<{width}}  -> {clean(check.remedy, 300)}")
    failing = [check.name for check in checks if check.verdict is CheckResult.FAIL]
    result = f"This computer cannot take part yet: {', '.join(failing)}." if failing else "This computer can take part."
    return [*found, "", result]


# ------------------------------------------------------------------------------------------------------------------------
# Training speed of this computer, measured seldom, because a measurement starts a trainer and takes a few steps.


KEPT_S = 7 * 86_400.0
"""Age from which the doctor measures again."""


async def training(folder: Path, *, anew: bool) -> tuple[Check, MeasuredPace | None]:
    """Return the training speed, measured with the demo's model in a real trainer.

    anew: measure even if a stored result exists.
    """
    pace = None if anew else kept_pace(folder)
    demo = demo_manifest().manifest
    if pace is not None and time.time() - pace.at < KEPT_S:
        figure = f"{amount(pace.computed_per_s(demo))} tokens/s of the demo's model"
        return ok("training", f"{figure}, {pace.of} (--anew measures again)"), pace
    try:
        speed = await measure_training()
    except PeerError as error:
        remedy = "read trainer.log, or run `peer bench --only training --debug`"
        return Check("training", CheckResult.FAIL, error.text, "", remedy), None
    pace = keep_pace(folder, speed.tokens_per_s, speed.parameters, "`peer doctor`")
    where = speed.device if speed.device != "cpu" else many(speed.threads, "thread")
    precision = f" in {speed.precision}" if speed.precision else ""
    return ok("training", f"{amount(speed.tokens_per_s)} tokens/s of the demo's model, {where}{precision}"), pace


# ------------------------------------------------------------------------------------------------------------------------


CHECK_S = 30.0
VISIT_S = 90.0
TRAINING_S = 90.0
MEASURE_LINES = "join, then run this again, or `peer bench --only lines`"


def known_lines(folder: Path) -> Check:
    """Return the check of the lines while no peer runs here: the last measurement, if there is one."""
    line = kept_line(folder)
    if line is None:
        return Check("lines", CheckResult.UNKNOWN, "not measured while no peer runs here", "", MEASURE_LINES)
    return ok("lines", f"{_rates(line.up, line.down)} (measured on {line.day})", f"at least {line_rate(LEAST_LINE)}")


class Examination:
    """The whole examination.

    word: names the run; None for the run of the running peer, else the demo's.  on_begin: called with the name of
    each check.  anew: measure again, even if a stored result exists.  local: meet only peers on this computer.
    """

    def __init__(
        self,
        folder: Path,
        preferences: Preferences,
        word: str | None,
        on_begin: Callable[[str], None],
        *,
        anew: bool = False,
        local: bool = False,
    ) -> None:
        self.folder, self.preferences, self.word, self.on_begin = folder, preferences, word, on_begin
        self.anew, self.local = anew, local
        self.checks: list[Check] = []
        self._peer: PeerId | None = None

    async def run(self) -> list[Check]:
        """Run every check, in the order of display."""
        for name, check in (("python", checks.python), ("torch", checks.torch), ("clock", checks.clock)):
            await self._thread(name, check)
        gpu_free = free_gpu_memory()
        await self._thread("gpu", partial(checks.gpu, gpu_free))
        await self._thread("cores", checks.cores)
        found = await self._swarm()
        manifest = found.signed.manifest if found.signed is not None else demo_manifest().manifest
        role = self._role(found, gpu_free)
        if manifest.rl is not None and role is not Role.SEED:
            await self._thread("tasks", partial(checks.tasks, manifest.rl.environment))
        if manifest.rl is not None and role is Role.ROLLOUT:
            chosen = GeneratorName(self.preferences.generator)
            await self._thread("generator", partial(checks.generator, chosen, gpu_free))
        if found.signed is not None:
            await self._data(found.signed, role)
        if found.signed is not None and manifest.requires is not None:
            run = run_dir(self.folder, found.signed.run)
            look = partial(checks.requirements, self.folder, run, manifest, role, self.preferences)
            await self._thread("requirements", look)
        scratch, wanted = 0, self.preferences
        try:  # as `peer join` would choose
            division = check_division(manifest, role, wanted.gpus, wanted.processes, wanted.offload)
            place = state_place(wanted.state, manifest, role, available_memory(), division.gpu, division.setup)
            scratch = shared_bytes(manifest, role) if place is StatePlace.DISK else 0
            await self._thread("memory", partial(checks.memory, manifest, role, division, place))
        except PeerError as error:
            self._failed("memory", error)
        await self._thread("disk space", partial(checks.disk, self.folder, manifest, scratch))
        if role is Role.TRAINER:
            await self._estimate(manifest, found.rates)
        return self.checks

    async def _data(self, signed: SignedManifest, role: Role) -> None:
        """Check the corpora of the run, or this peer's own data."""
        manifest, folder, preferences = signed.manifest, run_dir(self.folder, signed.run), self.preferences
        if manifest.data.is_local and role is Role.TRAINER:
            await self._thread("own data", partial(corpora.own_data, preferences))
        if manifest.data.corpora in ([], [BUILTIN]):
            return  # every peer builds the text that comes with the program
        here: list[corpora.CorporaHere | None] = [None]

        def look() -> Check:
            here[0] = corpora.find_corpora(manifest, folder, preferences)
            return corpora.blocks_here(here[0])

        await self._thread("corpora", look)
        if (known := here[0]) is None:
            return
        room = DiskRoom(self.folder, lambda: preferences.max_disk)
        await self._thread("block cache", partial(corpora.block_cache, known, folder, room, preferences))
        if self._peer is not None and known.missing is not None and manifest.data.mirrors:
            self.on_begin("mirrors")
            self.checks += await corpora.ask_mirrors(manifest, known, self._peer, preferences)

    def _role(self, found: Findings, gpu_free: int | None) -> Role:
        """Return the chosen role, or the role that this peer would get; with rollouts, add a check with the reason."""
        if self.preferences.role != "auto":
            return Role(self.preferences.role)
        if found.signed is None or self._peer is None or found.signed.manifest.rl is None:
            return Role.TRAINER
        state = self.preferences.state
        manifest, run = found.signed.manifest, found.signed.run
        room = DiskRoom(self.folder, lambda: self.preferences.max_disk)
        computer = this_computer(room, run_dir(self.folder, run), self.preferences)
        may_train = not requirement_problem(manifest, Role.TRAINER, computer)
        free = available_memory()
        role, reason = choose_role(manifest, run, self._peer, free, gpu_free, state, may_train=may_train)
        self.checks.append(ok("role", f"{role.value}: {reason}"))
        return role

    async def _swarm(self) -> Findings:
        """Check the run, the identity, and the other peers' answers."""
        found = Findings()
        try:
            identity = load_or_create_identity(self.folder)
            self._peer = identity.peer_id
            choice = choose(self.word, self.folder, identity.peer_id)
        except (PeerError, KeyfileError, OSError, ValueError) as error:
            self._failed("identity" if isinstance(error, KeyfileError) else "run", error)
            return found
        status = None
        with suppress(ControlError):
            status = ControlClient(self.folder).status()
        if status is not None:
            self.checks.append(ok("identity", f"{identity.peer_id}, held by the peer that runs here ({status.pid})"))
            if self.word is not None and status.run != choice.run.hex():
                remedy = "stop it with `peer leave`, or give this one its own folder with --data-dir"
                self.checks.append(Check("run", CheckResult.FAIL, "the peer here takes part in another run", "", remedy))
                return found
            found = await trio.to_thread.run_sync(ask_the_peer, status, self.folder)
            self.checks += [*_run(found), *found.checks]
            await self._thread("lines", partial(check_lines, status, self.folder))
            return found
        try:
            with identity_lock(self.folder):
                self.checks.append(ok("identity", identity.peer_id))
                self.on_begin("the swarm")
                with trio.move_on_after(VISIT_S) as scope:
                    found = await visit(Visit(self.folder, identity, choice, self.preferences, self.local))
                if scope.cancelled_caught:
                    late = Check("peers", CheckResult.FAIL, f"no end within {VISIT_S:.0f} s", "", "try again")
                    found = Findings([late], choice.signed)
        except KeyfileError as error:
            self._failed("identity", error)
            return found
        self.checks += [*_run(found), *found.checks, known_lines(self.folder)]
        return found

    async def _estimate(self, manifest: RunManifest, rates: Mapping[PeerId, float]) -> None:
        pace: MeasuredPace | None = None
        self.on_begin("training")
        with trio.move_on_after(TRAINING_S) as scope:
            check, pace = await training(self.folder, anew=self.anew)
            self.checks.append(check)
        if scope.cancelled_caught:
            remedy = "stop other programs that keep this computer busy, and try again"
            self.checks.append(Check("training", CheckResult.WARN, f"no result within {TRAINING_S:.0f} s", "", remedy))
        if pace is not None:
            self.checks.append(estimate(pace, manifest, rates))

    async def _thread(self, name: str, work: Callable[[], Check | list[Check]]) -> None:
        """Run a blocking check in a thread; a missing answer or a fault is reported as a check."""
        self.on_begin(name)
        try:
            with trio.fail_after(CHECK_S):
                found = await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # type: ignore[call-arg]  # stale stubs
        except trio.TooSlowError:
            value, remedy = f"no answer within {CHECK_S:.0f} s", "try again when this computer is less busy"
            found = Check(name, CheckResult.UNKNOWN, value, "", remedy)
        except Exception as error:  # noqa: BLE001 - a check that fails in an unforeseen way must not hide the others
            value, remedy = f"{type(error).__name__}: {error}", "run it again with --debug, and report it"
            found = Check(name, CheckResult.UNKNOWN, value, "", remedy)
        self.checks += found if isinstance(found, list) else [found]

    def _failed(self, name: str, error: Exception) -> None:
        text = error.text if isinstance(error, PeerError) else str(error)
        self.checks.append(flawed(name, CheckResult.FAIL, text, "see `peer join --help`"))


def _run(found: Findings) -> list[Check]:
    """Return a check that names the examined run."""
    if found.signed is None:
        return []
    manifest = found.signed.manifest
    trained = f"{manifest.parameters / 1e6:.1f} M parameters{adapter_words(manifest)}"
    return [ok("run", f"{manifest.name} ({found.signed.run.hex()[:12]}), {trained}")]


def estimate(pace: MeasuredPace, manifest: RunManifest, rates: Mapping[PeerId, float]) -> Check:
    """Estimate this computer's part of the swarm's tokens, from the rates that the swarm's peers claim."""
    mine, others = pace.computed_per_s(manifest), sum(rates.values())
    about = f"about {mine:.0f} tokens/s" if mine >= 10 else f"about {mine:.2g} tokens/s"
    if not others:
        return ok("estimate", f"this computer would contribute {about}; no other trainer was heard")
    share = 100 * mine / (mine + others)
    return ok("estimate", f"this computer would contribute about {share:.2g} % of the swarm's tokens, {about}")
