"""Ranks of a real trainer process: one contribution, and one end."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import trio

from peer.trainer_process.process import TrainerRanks
from protocol.trainer_link import Progress, TrainerDied, TrainerGaveUp
from tests.peer.trainer_process.test_process import LONG, SHORT, Bench, nothing, nothing_heard, with_trainer

pytestmark = pytest.mark.slow

TWO = TrainerRanks(processes=2)


def ranks_of(bench: Bench) -> list[psutil.Process]:
    """The processes of a trainer, rank 0 first."""
    assert bench.trainer.pid is not None
    lead = psutil.Process(bench.trainer.pid)
    return [lead, *lead.children()]


def contribution(folder: Path, ranks: TrainerRanks) -> tuple[float, float, bytes]:
    """Held-out loss, mean loss and bytes of a round."""
    found: list[tuple[float, float, bytes]] = []

    async def scenario(bench: Bench) -> None:
        await bench.trainer.initialise(bench.theta.view)
        measured = await bench.trainer.evaluate(bench.theta.view, nothing)
        done = await bench.trainer.compute(SHORT, bench.theta.view, nothing_heard)
        assert len(ranks_of(bench)) == ranks.processes
        found.append((measured.loss, done.loss, bytes(done.data)))

    with_trainer(folder, scenario, ranks=ranks)
    return found[0]


def test_a_trainer_of_two_ranks_contributes_as_one_process(tmp_path: Path) -> None:
    (held_out, loss, data), (shared_held_out, shared_loss, shared_data) = (
        contribution(tmp_path, ranks) for ranks in (TrainerRanks(), TWO)
    )
    # each trainer measures whether it computes in bf16; `tests.trainer.test_ranks` compares the numbers in fp32
    assert (shared_held_out, shared_loss) == pytest.approx((held_out, loss), rel=1e-3)
    assert len(shared_data) == len(data)


@pytest.mark.parametrize(("rank", "at_work"), [(1, True), (0, True), (1, False)])
def test_all_ranks_end_with_any_of_them_and_the_trainer_starts_again(tmp_path: Path, rank: int, at_work: bool) -> None:
    async def scenario(bench: Bench) -> None:
        trainer, theta = bench.trainer, bench.theta.view
        await trainer.initialise(theta)
        ranks = ranks_of(bench)

        def kill_at_three(progress: Progress) -> None:
            if progress.steps == 3:
                ranks[rank].kill()

        if at_work:
            with pytest.raises(TrainerDied) as died:
                await trainer.compute(LONG, theta, kill_at_three)
            assert "SIGKILL" in str(died.value)
        else:
            ranks[rank].kill()
            while not bench.stopped:
                await trio.sleep(0.01)
            assert "SIGKILL" in bench.stopped[0]
        await trainer.until_ready()
        done = await trainer.compute(SHORT, theta, nothing_heard)
        assert done.steps == SHORT.steps
        assert len(bench.started) == 2 and trainer.pid == bench.started[-1]
        _, alive = psutil.wait_procs(ranks, timeout=30)
        assert not alive, "no rank outlives the others"

    with_trainer(tmp_path, scenario, ranks=TWO)


def test_ranks_end_with_their_peer(tmp_path: Path) -> None:
    ranks: list[psutil.Process] = []

    async def scenario(bench: Bench) -> None:
        ranks.extend(ranks_of(bench))

    with_trainer(tmp_path, scenario, ranks=TWO)
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert len(ranks) == 2 and not alive


def test_a_rank_that_is_stopped_ends_with_rank_0(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        lead, other = ranks_of(bench)
        other.suspend()
        lead.kill()
        _, alive = await trio.to_thread.run_sync(psutil.wait_procs, [other], 30)
        assert not alive

    with_trainer(tmp_path, scenario, ranks=TWO)


def test_gpus_that_are_not_here_are_refused_with_a_sentence(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(TrainerGaveUp, match="--gpus 0,1000 names GPUs that are not here"):
            await bench.trainer.until_ready()

    with_trainer(tmp_path, scenario, starts=False, ranks=TrainerRanks(gpus="0,1000"))
