"""The link to a real trainer process: what it computes, and every way it can end.

Waits on events only; the deadline is there to fail instead of hanging.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts
from peer.trainer_process.process import MAX_FAILURES, TrainerProcess, TrainerSettings, environment
from protocol.chain.outer_state import SharedRegion
from protocol.events.events import Event, TrainerStarted, TrainerStopped
from protocol.trainer_link import ComputeTask, LimitsExceeded, Progress, TrainerDied, TrainerGaveUp
from tests.trainer import small
from tests.trainer.data import corpora
from trainer.data.corpus import StoredCorpus
from trainer.optim import CHECKSUM_BYTES, TEXT
from trainer.service import frames

DEADLINE_S = 600
SECTIONS = small.SECTIONS | {"inner_steps": 10**6}
LONG = ComputeTask(round=0, rows=((0, 2 * 10**6),), steps=10**6, first_step=0)
"""Not at its end before somebody ends it, however slow that somebody is."""
SHORT = ComputeTask(round=1, rows=((7, 9), (20, 24)), steps=3, first_step=3)
SIZE = small.LAYOUT.payload_bytes


@dataclass
class Bench:
    """A trainer with its memory, and what it said about itself.  scope: of its life.  gave_up: why it ended by itself."""

    trainer: TrainerProcess
    theta: SharedRegion
    started: list[int] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    gave_up: str = ""

    def take(self, event: Event) -> None:
        match event:
            case TrainerStarted(pid):
                self.started.append(pid)
            case TrainerStopped(reason):
                self.stopped.append(reason)

    async def run(self) -> None:
        with self.scope:
            self.gave_up = await self.trainer.run()


def nothing(done: int, total: int) -> None:
    """For who does not care how far an evaluation is."""


def nothing_heard(progress: Progress) -> None:
    """For who does not care how far a round is."""


def _exists(pid: int) -> bool:
    """Whether there is such a process; a zombie counts."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def with_trainer(
    folder: Path, scenario: Callable[[Bench], Awaitable[None]], *, starts: bool = True, **settings: Any
) -> None:
    """Run `scenario` with a trainer process, and check that no process is left of it."""

    async def main() -> None:
        theta = SharedRegion(4 * small.PARAMETERS)
        options: dict[str, Any] = {"threads": 1, "first_backoff_s": 0.0, "device": "cpu"} | settings
        sections, size = options.pop("sections", SECTIONS), options.pop("size", SIZE)
        bench = Bench(None, theta)  # type: ignore[arg-type]
        bench.trainer = TrainerProcess(
            TrainerSettings(sections, size, folder / "trainer.log", **options),
            theta,
            bench.take,
        )
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bench.run)
                if starts:
                    await bench.trainer.until_ready()
                await scenario(bench)
                bench.scope.cancel()
        theta.close()
        assert bench.trainer.pid is None
        assert not [pid for pid in bench.started if _exists(pid)]

    trio.run(main)


def test_a_trainer_without_a_folder_of_its_own_gives_up_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "compiled").write_text("a file")

    async def scenario(bench: Bench) -> None:
        assert bench.trainer.ended == "" and bench.trainer.pid is None
        with pytest.raises(TrainerGaveUp, match="could not be started: cannot create the folder"):
            await bench.trainer.until_ready()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.gave_up == bench.stopped[-1], "what the peer ends with"
        told = f"the trainer ended {MAX_FAILURES} times and is started again; last: the trainer could not be started: cannot"
        assert bench.trainer.ended.startswith(told)

    with_trainer(tmp_path, scenario, starts=False)


@pytest.mark.slow
def test_a_trainer_waits_for_a_block_and_goes_on_when_it_is_here(tmp_path: Path) -> None:
    shape = corpora.Shape()
    corpus = corpora.write_corpus(tmp_path / "corpus", shape, {"web": corpora.texts(1, 2000, 2000)})
    whole, cache = corpora.cut_into_blocks(corpus, shape, tmp_path / "whole"), tmp_path / "cache"

    async def scenario(bench: Bench) -> None:
        trainer, theta = bench.trainer, bench.theta.view
        await trainer.initialise(theta)
        results: list[Any] = []

        async def measure() -> None:
            results.append((await trainer.evaluate(theta, lambda done, total: measuring.set())).loss)

        async def compute() -> None:
            results.append(await trainer.compute(SHORT, theta, nothing_heard))

        measuring = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure)
            await measuring.wait()
            nursery.start_soon(compute)
            await trio.testing.wait_all_tasks_blocked()
            assert not results, "neither ends without its blocks"
            whole.rename(cache)
        loss = next(each for each in results if isinstance(each, float))
        done = next(each for each in results if not isinstance(each, float))
        assert loss == pytest.approx(np.log(256), rel=0.05) and done.steps == 3
        assert bench.started == [trainer.pid]

    with_trainer(tmp_path, scenario, sections=small.run_sections(corpus, {"web": 1}, cache))


def test_trainer_initialises_computes_and_evaluates_whatever_another_user_made_of_the_runtime_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    others.chmod(0o777)
    monkeypatch.setenv("PEER_RUNTIME_DIR", str(others))

    async def scenario(bench: Bench) -> None:
        trainer, theta = bench.trainer, bench.theta.view
        await trainer.initialise(theta)
        assert np.array_equal(np.frombuffer(theta, dtype="<f4"), small.theta())
        assert (await trainer.evaluate(theta, nothing)).loss == pytest.approx(np.log(256), rel=0.05)
        heard: list[Progress] = []
        done = await trainer.compute(SHORT, theta, heard.append)
        assert [progress.steps for progress in heard] == [1, 2, 3]
        assert (done.round, done.steps, done.tokens) == (1, 3, 3 * 2 * 16)
        assert len(done.data) == SIZE
        assert any(done.data)
        assert np.array_equal(np.frombuffer(theta, dtype="<f4"), small.theta())
        assert bench.started == [trainer.pid]

    with_trainer(tmp_path, scenario)
    assert (tmp_path / "compiled").stat().st_mode & 0o777 == 0o700


def test_limits_of_pace_change_while_the_trainer_runs(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    theta = SharedRegion(4 * small.PARAMETERS)
    trainer = TrainerProcess(TrainerSettings(SECTIONS, SIZE, tmp_path / "trainer.log"), theta)
    trainer._channel = SimpleNamespace(send=said.append)  # type: ignore[assignment]
    for watts, load in ((None, None), (None, 0.6), (200.0, 0.6), (200.0, 0.6), (None, None)):
        trainer.limit_pace(watts, load)
    assert said == [
        {"do": "pace", "watts": 0.0, "load": 0.6},
        {"do": "pace", "watts": 200.0, "load": 0.6},
        {"do": "pace", "watts": 0.0, "load": 1.0},
    ]
    theta.close()


# -- one process and every command ---------------------------------------------------------------------------------------


async def finishes_early(bench: Bench) -> None:
    def finish_at_two(progress: Progress) -> None:
        if progress.steps == 2:
            bench.trainer.finish()

    done = await bench.trainer.compute(LONG, bench.theta.view, finish_at_two)
    assert 2 <= done.steps < LONG.steps
    assert done.tokens == done.steps * 2 * 16
    after = await bench.trainer.compute(SHORT, bench.theta.view, nothing_heard)
    assert after.steps == SHORT.steps, "finish is for one round only"


async def abandons_a_cancelled_round(bench: Bench) -> None:
    with trio.CancelScope() as scope:
        await bench.trainer.compute(LONG, bench.theta.view, lambda progress: scope.cancel())
    assert scope.cancelled_caught
    heard: list[int] = []
    done = await bench.trainer.compute(SHORT, bench.theta.view, lambda progress: heard.append(progress.round))
    assert done.steps == SHORT.steps
    assert set(heard) == {SHORT.round}, "nothing is heard of the abandoned round"


async def measures_beside_training_after_its_first_step(bench: Bench) -> None:
    trainer, theta = bench.trainer, bench.theta.view
    alone = (await trainer.evaluate(theta, nothing)).loss
    heard: list[str] = []
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def measure() -> None:
            measured = await trainer.evaluate(theta, lambda done, total: heard.append(f"{done} of {total}"))
            assert measured.loss == pytest.approx(alone, rel=1e-6)
            heard.append("measured")
            trainer.finish()

        done = await trainer.compute(LONG, theta, lambda progress: heard.append("step"))
    assert heard[0] == "step" and done.steps < LONG.steps, "it is measured in the middle of the round"
    corpus = StoredCorpus.read(small.CORPUS / "corpus.msgpack")
    windows = corpus.rows(corpus.sources["text"].held_out, SECTIONS["data"]["sequence_length"])
    parts = [f"{measured} of {windows}" for measured in range(64, windows, 64)]
    assert [word for word in heard if word != "step"] == [*parts, "measured"]


async def says_nothing_of_parameters_that_changed_since(bench: Bench) -> None:
    trainer, theta = bench.trainer, bench.theta.view
    for _ in range(3):
        with trio.CancelScope() as scope:
            await trainer.evaluate(theta, lambda done, total: scope.cancel())
        assert scope.cancelled_caught
        theta[:] = bytes(len(theta))
        assert (await trainer.evaluate(theta, nothing)).loss == pytest.approx(np.log(256), rel=1e-6), "of zeros alone"
        await trainer.initialise(theta)


async def finishes_though_paused(bench: Bench) -> None:
    first_step = trio.Event()
    heard: list[int] = []

    def pause(progress: Progress) -> None:
        heard.append(progress.steps)
        bench.trainer.pause()
        first_step.set()

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def finish() -> None:
            await first_step.wait()
            bench.trainer.finish()

        done = await bench.trainer.compute(LONG, bench.theta.view, pause)
    assert done.steps == heard[-1] < LONG.steps
    bench.trainer.resume()


async def trains_a_whole_round_under_a_limit_of_load(bench: Bench) -> None:
    bench.trainer.limit_pace(None, 0.5)
    heard: list[int] = []
    done = await bench.trainer.compute(SHORT, bench.theta.view, lambda progress: heard.append(progress.steps))
    assert done.steps == SHORT.steps and heard == [*range(1, SHORT.steps + 1)]


async def changes_threads_between_steps(bench: Bench) -> None:
    def at_two(progress: Progress) -> None:
        bench.trainer.use_threads(2)
        bench.trainer.finish()

    assert bench.trainer.threads == 1
    assert (await bench.trainer.compute(LONG, bench.theta.view, at_two)).steps < LONG.steps
    assert bench.trainer.threads == 2


@pytest.mark.slow
def test_one_process_obeys_all_commands(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        trainer, theta = bench.trainer, bench.theta.view
        for obeys in (
            finishes_early,
            abandons_a_cancelled_round,
            measures_beside_training_after_its_first_step,
            says_nothing_of_parameters_that_changed_since,
            finishes_though_paused,
            trains_a_whole_round_under_a_limit_of_load,
            changes_threads_between_steps,
        ):
            await trainer.initialise(theta)
            await obeys(bench)
        assert len(bench.started) == 1, "the same process goes on"
        assert trainer.pid is not None
        os.kill(trainer.pid, signal.SIGKILL)
        with pytest.raises(TrainerDied):
            await trainer.compute(SHORT, theta, nothing_heard)
        await trainer.compute(SHORT, theta, nothing_heard)
        assert trainer.threads == 2 and len(bench.started) == 2, "the number of threads holds for the next process"
        with pytest.raises(TrainerDied, match="stopped"):
            await trainer.compute(LONG, theta, lambda progress: bench.scope.cancel())

    with_trainer(tmp_path, scenario)


def test_idle_threads_sleep_unless_the_user_wants_otherwise(tmp_path: Path) -> None:
    for ours, policy in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        assert environment(ours, tmp_path)["OMP_WAIT_POLICY"] == policy


@pytest.mark.slow
def test_a_killed_trainer_costs_no_moments(tmp_path: Path) -> None:
    """With a codec without error feedback, because the residual is in memory alone."""
    sections = SECTIONS | {"codec": "int8"}
    size = chunk_layouts(LADDER["int8"], small.PARAMETERS, SECTIONS["chunk_parameters"]).contribution.payload_bytes

    def scenario_of(kills: bool, contributions: list[bytes]) -> Callable[[Bench], Awaitable[None]]:
        async def scenario(bench: Bench) -> None:
            trainer, theta = bench.trainer, bench.theta.view
            await trainer.initialise(theta)
            await trainer.compute(SHORT, theta, lambda progress: None)
            await trainer.evaluate(theta, nothing)  # begins when the moments are stored
            if kills:
                with pytest.raises(TrainerDied, match="SIGKILL"):
                    await trainer.compute(LONG, theta, lambda progress: os.kill(bench.started[0], signal.SIGKILL))
                assert not _exists(bench.started[0]) and len(bench.stopped) == 1
            done = await trainer.compute(replace(SHORT, round=2, first_step=6), theta, lambda progress: None)
            contributions.append(bytes(done.data))

        return scenario

    contributions: list[bytes] = []
    for kills in (False, True):
        folder = tmp_path / str(kills)
        folder.mkdir()
        with_trainer(folder, scenario_of(kills, contributions), moments=folder, sections=sections, size=size)
    assert contributions[0] == contributions[1]


@pytest.mark.slow
def test_moments_that_lead_to_no_numbers_are_not_read_twice(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.trainer.initialise(bench.theta.view)
        first = bytes((await bench.trainer.compute(SHORT, bench.theta.view, nothing_heard)).data)
        await bench.trainer.evaluate(bench.theta.view, nothing)  # after the moments are written
        assert bench.trainer.pid is not None
        os.kill(bench.trainer.pid, signal.SIGKILL)
        raw = bytearray((tmp_path / TEXT).read_bytes())
        at = len(raw) - 4 - CHECKSUM_BYTES - 8 * small.PARAMETERS
        raw[at : at + 4] = np.float32(3e38).tobytes()  # the first mean: finite, but no mean of this training
        raw[-CHECKSUM_BYTES:] = zlib.crc32(raw[:-CHECKSUM_BYTES]).to_bytes(CHECKSUM_BYTES, "little")
        (tmp_path / TEXT).write_bytes(raw)
        while not bench.stopped:
            await trio.sleep(0.01)
        with pytest.raises(TrainerDied, match="is not finite|is nan|is inf|loss is"):
            await bench.trainer.compute(SHORT, bench.theta.view, nothing_heard)
        assert bytes((await bench.trainer.compute(SHORT, bench.theta.view, nothing_heard)).data) == first

    with_trainer(tmp_path, scenario, moments=tmp_path)


@pytest.mark.slow
def test_a_round_beyond_its_limits_is_told_as_such_and_forgets_the_moments(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        trainer, theta = bench.trainer, bench.theta.view
        await trainer.initialise(theta)
        done = await trainer.compute(SHORT, theta, nothing_heard)
        await trainer.evaluate(theta, nothing)  # after the moments are written
        assert (tmp_path / TEXT).exists()
        with pytest.raises(LimitsExceeded, match="round 1 is not contributed, because its norm of"):
            await trainer.compute(replace(SHORT, most_norm=done.norm / 2), theta, nothing_heard)
        assert not (tmp_path / TEXT).exists()
        with pytest.raises(TrainerDied, match="not 0") as death:
            await trainer.compute(replace(SHORT, steps=0), theta, nothing_heard)
        assert not isinstance(death.value, LimitsExceeded)

    with_trainer(tmp_path, scenario, moments=tmp_path)


@pytest.mark.slow
def test_end_of_the_peer_ends_the_trainer_in_the_middle_of_a_round() -> None:
    theta, contribution = SharedRegion(4 * small.PARAMETERS), SharedRegion(SIZE)
    ours, theirs = socket.socketpair()
    fds = (theirs.fileno(), theta.fd, contribution.fd)
    command = [sys.executable, "-m", "trainer"]
    for name, fd in zip(("--fd", "--theta-fd", "--contribution-fd"), fds, strict=True):
        command += [name, str(fd)]
    with subprocess.Popen(command, pass_fds=fds) as process:
        theirs.close()
        buffer = bytearray()
        ours.settimeout(DEADLINE_S)
        setup = {"do": "configure", "id": 1, "sections": SECTIONS, "threads": 1, "device": "cpu", "trains": True}
        ours.sendall(frames.pack(setup) + frames.pack({"do": "initialise", "id": 2}))
        ours.sendall(frames.pack({"do": "compute", "id": 3, "task": vars(LONG)}))
        while (message := frames.receive(ours, buffer)) is not None and message["is"] != "progress":
            continue
        assert message is not None
        ours.close()
        assert process.wait(DEADLINE_S) == 0
