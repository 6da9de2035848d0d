"""Ranks of a real trainer process: one contribution, and one end."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import trio

from peer.trainer_process.process import TrainerRanks
from protocol.trainer_link import TrainerDied, TrainerGaveUp
from tests.peer.trainer_process.test_process import SHORT, Bench, nothing, nothing_heard, with_trainer
from trainer.optim import TEXT

pytestmark = pytest.mark.slow

TWO = TrainerRanks(processes=2)


HOOK = """
import os, pathlib, signal, sys
FAULTS = {folder!r}
if "trainer" in sys.orig_argv:
    from trainer import device, ranks

    device.BF16_GAIN = float("inf")

    def told(tell):
        def wrapped(self, operation, *arguments):
            tell(self, operation, *arguments)
            plan = pathlib.Path(FAULTS, "rank-" + str(self.number))
            if plan.exists() and plan.read_text().split()[0] == operation:
                number = int(plan.read_text().split()[1])
                plan.unlink()
                os.kill(os.getpid(), number)

        return wrapped

    for kind in (ranks.LeadingRank, ranks.FollowingRank):
        kind.tell = told(kind.tell)
"""
"""Has trainers compute in fp32, whatever they measure, and a rank send itself a signal in the operation that its file names.

Python runs this at the start of each process.
"""


class Faults:
    """Faults of the ranks of a bench's trainer, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def plan(self, operation: str, rank: int, number: signal.Signals) -> None:
        """The next time that this rank does this, it gets a signal."""
        unfinished = self._folder / "rank.new"
        unfinished.write_text(f"{operation} {number.value}")
        unfinished.replace(self._folder / f"rank-{rank}")

    async def come(self) -> None:
        """Return when the faults have come."""
        while [*self._folder.glob("rank-*")]:
            await trio.sleep(0.01)


@pytest.fixture(autouse=True)
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    (tmp_path / "sitecustomize.py").write_text(HOOK.format(folder=str(tmp_path)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "secret")
    return Faults(tmp_path)


def ranks_of(bench: Bench) -> list[psutil.Process]:
    """The processes of a trainer, rank 0 first."""
    assert bench.trainer.pid is not None
    lead = psutil.Process(bench.trainer.pid)
    return [lead, *lead.children()]


def contribution(folder: Path, ranks: TrainerRanks) -> tuple[float, float, bytes]:
    """Held-out loss, mean loss and bytes of a round."""
    found: list[tuple[float, float, bytes]] = []
    processes: list[psutil.Process] = []

    async def scenario(bench: Bench) -> None:
        await bench.trainer.initialise(bench.theta.view)
        measured = await bench.trainer.evaluate(bench.theta.view, nothing)
        done = await bench.trainer.compute(SHORT, bench.theta.view, nothing_heard)
        processes.extend(ranks_of(bench))
        assert len(processes) == ranks.processes
        assert not any("HF_TOKEN" in each.environ() for each in processes)
        found.append((measured.loss, done.loss, bytes(done.data)))

    with_trainer(folder, scenario, ranks=ranks)
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive, "ranks end with their peer"
    return found[0]


def test_a_trainer_of_two_ranks_contributes_as_one_process_and_ends_with_its_peer(tmp_path: Path) -> None:
    (held_out, loss, data), (shared_held_out, shared_loss, shared_data) = (
        contribution(tmp_path, ranks) for ranks in (TrainerRanks(), TWO)
    )
    assert (shared_held_out, shared_loss) == pytest.approx((held_out, loss), rel=1e-6)
    assert len(shared_data) == len(data)


def test_all_ranks_end_with_any_of_them_also_without_work_and_the_trainer_starts_again(tmp_path: Path) -> None:
    async def all_end(ranks: list[psutil.Process]) -> None:
        _, alive = await trio.to_thread.run_sync(psutil.wait_procs, ranks, 30)
        assert not alive, "no rank outlives the others"

    async def scenario(bench: Bench) -> None:
        ranks = ranks_of(bench)
        ranks[1].kill()
        while not bench.stopped:
            await trio.sleep(0.01)
        assert "SIGKILL" in bench.stopped[0]
        await bench.trainer.until_ready()
        assert len(bench.started) == 2 and bench.trainer.pid == bench.started[-1]
        await all_end(ranks)
        lead, other = ranks_of(bench)
        other.suspend()
        lead.kill()
        await all_end([other])

    with_trainer(tmp_path, scenario, ranks=TWO)


# -- a rank that is killed or stopped at an operation, and strangers at the ranks' ports ---------------------------------


OPERATIONS = (("measure", 1), ("step", 0), ("encode", 1))
"""Each with a rank: of an evaluation, of training, and of a contribution."""


async def measured(bench: Bench) -> tuple[float, bytes]:
    """Held-out loss and contribution."""
    loss = (await bench.trainer.evaluate(bench.theta.view, nothing)).loss
    return loss, bytes((await bench.trainer.compute(SHORT, bench.theta.view, nothing_heard)).data)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[float, bytes]]:
    """What a trainer of two ranks to which nothing happens gives in its first rounds."""
    found: list[tuple[float, bytes]] = []
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "sitecustomize.py").write_text(HOOK.format(folder=str(folder)))

    async def scenario(bench: Bench) -> None:
        await bench.trainer.initialise(bench.theta.view)
        for _ in OPERATIONS:
            found.append(await measured(bench))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        with_trainer(folder, scenario, ranks=TWO)
    return found


def test_a_rank_that_is_killed_at_an_operation_leaves_no_process_and_no_wrong_contribution(
    tmp_path: Path, faults: Faults, undisturbed: list[tuple[float, bytes]]
) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.trainer.initialise(bench.theta.view)
        for operation, rank in OPERATIONS:
            ranks = ranks_of(bench)
            faults.plan(operation, rank, signal.SIGKILL)
            with pytest.raises(TrainerDied):
                await measured(bench)
            _, alive = await trio.to_thread.run_sync(psutil.wait_procs, ranks, 30)
            assert not alive
            await bench.trainer.until_ready()
        assert await measured(bench) == undisturbed[0]

    with_trainer(tmp_path, scenario, ranks=TWO)


def test_a_rank_that_is_killed_while_it_writes_moments_leaves_those_of_before(tmp_path: Path, faults: Faults) -> None:
    folder = tmp_path / "moments"
    folder.mkdir()

    async def scenario(bench: Bench) -> None:
        await bench.trainer.initialise(bench.theta.view)
        ranks = ranks_of(bench)
        faults.plan("write_moments", 1, signal.SIGKILL)
        await measured(bench)
        _, alive = await trio.to_thread.run_sync(psutil.wait_procs, ranks, 30)
        assert not alive and not (folder / TEXT).exists()
        while not bench.stopped:
            await trio.sleep(0.01)
        await bench.trainer.until_ready()
        await measured(bench)
        await bench.trainer.evaluate(bench.theta.view, nothing)  # after the moments are written
        assert {path.name for path in folder.iterdir()} == {TEXT}, "nothing half-written is left"

    with_trainer(tmp_path, scenario, ranks=TWO, moments=folder)


def test_a_rank_that_is_stopped_for_a_while_at_an_operation_changes_nothing(
    tmp_path: Path, faults: Faults, undisturbed: list[tuple[float, bytes]]
) -> None:
    found: list[tuple[float, bytes]] = []

    async def resumed(bench: Bench, rank: int) -> None:
        await faults.come()
        process = ranks_of(bench)[rank]
        while process.status() != psutil.STATUS_STOPPED:
            await trio.sleep(0.01)
        process.resume()

    async def scenario(bench: Bench) -> None:
        await bench.trainer.initialise(bench.theta.view)
        for operation, rank in OPERATIONS:
            async with trio.open_nursery() as nursery:
                faults.plan(operation, rank, signal.SIGSTOP)
                nursery.start_soon(resumed, bench, rank)
                found.append(await measured(bench))
        assert len(bench.started) == 1

    with_trainer(tmp_path, scenario, ranks=TWO)
    assert found == undisturbed


def ports_of(ranks: Sequence[psutil.Process]) -> set[tuple[str, int]]:
    """The addresses at which they listen."""
    found = set[tuple[str, int]]()
    for process in ranks:
        with suppress(psutil.Error):
            found |= {tuple(each.laddr) for each in process.net_connections() if each.status == psutil.CONN_LISTEN}
    return found


SAID = (b"", b"\x01", bytes(4096), b"\xff" * 4096, b"GET / HTTP/1.0\r\n\r\n")
"""What strangers say, and then stay connected: nothing, a little, and what is no word of any protocol there."""


def test_strangers_at_the_ports_of_ranks_change_nothing(tmp_path: Path, undisturbed: list[tuple[float, bytes]]) -> None:
    """Every port from the moment it is there, while the ranks meet, and again while they work."""
    found: list[tuple[float, bytes]] = []
    held: list[socket.socket] = []

    def knock(ports: set[tuple[str, int]]) -> None:
        for port in ports:
            assert port[0] == "127.0.0.1"
            for said in SAID:
                with suppress(OSError):
                    held.append(socket.create_connection(port, 5))
                    held[-1].sendall(said)

    async def keep_knocking(knocked: set[tuple[str, int]]) -> None:
        while True:
            fresh = ports_of(psutil.Process().children(recursive=True)) - knocked
            knocked |= fresh
            await trio.to_thread.run_sync(knock, fresh)
            await trio.sleep(0.001)

    async def scenario(bench: Bench) -> None:
        knocked = set[tuple[str, int]]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_knocking, knocked)
            await bench.trainer.until_ready()
            await bench.trainer.initialise(bench.theta.view)
            for _ in undisturbed:
                found.append(await measured(bench))
                await trio.to_thread.run_sync(knock, ports_of(ranks_of(bench)))
            assert len(bench.started) == 1 and len(knocked) >= 2
            nursery.cancel_scope.cancel()

    with_trainer(tmp_path, scenario, starts=False, ranks=TWO)
    for each in held:
        each.close()
    assert found == undisturbed


def test_gpus_that_are_not_here_are_refused_with_a_sentence(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(TrainerGaveUp, match="--gpus 0,1000 names GPUs that this computer does not have"):
            await bench.trainer.until_ready()

    with_trainer(tmp_path, scenario, starts=False, ranks=TrainerRanks(gpus="0,1000"))
