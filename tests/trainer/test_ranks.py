"""Several ranks that share a model train as one process does."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from kernels.codecs.format import from_bf16
from protocol.corpora.manifest import CorpusKind
from protocol.formats.adapter import AdapterConfig
from protocol.formats.model import ModelConfig
from protocol.formats.rl import RlConfig
from protocol.formats.training import SamplesConfig
from tests.tiers import first_fast
from tests.trainer import small
from tests.trainer.data.corpora import Shape, preferences, write_corpus
from tests.trainer.rl.test_learner import groups
from tests.trainer.team import FAMILIES, Team, team
from tests.trainer.weights.models import in_blocks, random_parameters
from trainer.config import TrainingConfig
from trainer.models.llama.initial import initial_parameters
from trainer.optim import TEXT
from trainer.rank_work import layouts_of
from trainer.receipts import cosines
from trainer.rl.learner import Learner, Learnt, LearnTask
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat
from trainer.worker import Task

ROUND = Task(0, [[0, 20]], 4, 0)


def config(family: str = "llama", rows: int = 5, **inner: Any) -> TrainingConfig:
    """A run whose tensors have numbers of rows that no number of ranks divides."""
    model = small.MODEL | {"vocab": 259, "ffn": 25, "layers": 2} | FAMILIES[family]
    data = small.SECTIONS["data"] | {"sequences_per_step": rows}
    return small.config(model=model, data=data, inner=small.SECTIONS["inner"] | inner)


def theta(model: ModelConfig) -> np.ndarray:
    values = np.empty(model.parameters, np.float32)
    initial_parameters(model, 7, values)
    return values


def decoded(run: TrainingConfig, data: bytes) -> np.ndarray:
    values = np.empty(run.parameters, np.float32)
    layout = layouts_of(run).contribution
    for span in layout:
        layout.format.decode(memoryview(data)[span.encoded], span.count, values[span.values])
    return values


def quanta(run: TrainingConfig, data: bytes) -> np.ndarray:
    """The quantum of each parameter."""
    values = np.empty(run.parameters, np.float32)
    layout = layouts_of(run).contribution
    for span in layout:
        scales = from_bf16(layout.format.sections(memoryview(data)[span.encoded], span.count)[0].view("<u2"))
        values[span.values] = np.repeat(scales, layout.format.block)[: span.count]
    return values


CASES = [("qwen2", "muon", 2), ("llama", "adamw", 3), ("qwen3", "adamw", 2)]


@pytest.mark.slow
def test_ranks_write_the_samples_of_one_process() -> None:
    run = replace(config(), samples=SamplesConfig(prompts=["Once upon a time", "ab"], tokens=4))
    texts = []
    for count in (1, 2):
        with team(run, count) as by:
            by.theta[:] = theta(run.model)
            evaluation = by.worker.evaluation(by.theta, 64, samples=True)
            evaluation.advance(evaluation.total)
            texts.append(evaluation.texts)
    assert texts[0] == texts[1] and all(texts[0])


@pytest.mark.parametrize(("family", "optimizer", "ranks"), first_fast(CASES))
def test_ranks_train_and_contribute_as_one_process(family: str, optimizer: str, ranks: int) -> None:
    run = replace(config(family, optimizer=optimizer), receipts=True)
    begin = theta(run.model)
    with team(run, 1) as one, team(run, ranks) as several:
        done, data, losses = one.compute(ROUND, begin)
        shared_done, shared_data, shared_losses = several.compute(ROUND, begin)
        held_out = [each.worker.evaluate(each.theta, 400) for each in (one, several)]
        alike = cosines(one.worker.receipts, several.worker.receipts)
        assert len(alike) == ROUND.steps * 5 and alike.min() > 0.99, "of all rows, in their order"
        assert one.worker.audits and not several.worker.audits
    assert shared_losses == pytest.approx(losses, rel=1e-6)
    assert held_out[1] == pytest.approx(held_out[0], rel=1e-6)
    assert (shared_done.steps, shared_done.tokens) == (done.steps, done.tokens)
    assert [each.tokens for each in shared_done.losses] == [each.tokens for each in done.losses]
    assert shared_done.norm == pytest.approx(done.norm, rel=1e-4)
    apart = np.abs(decoded(run, shared_data) - decoded(run, data))
    assert (apart <= 1.01 * quanta(run, data)).all()


@pytest.mark.slow
def test_ranks_train_an_adapter_as_one_process(tmp_path: Path) -> None:
    """5 rows a step, which two ranks do not divide; each rank has the frozen model and all factors."""
    run = replace(config("qwen2"), adapter=AdapterConfig(rank=3))
    frozen = random_parameters(run.model)
    write_folder(tmp_path, run.model, in_blocks(frozen), ExportFormat.FP32, context=64, eos=None)
    run = replace(run, files={**run.files, **{f"base/{path.name}": str(path) for path in tmp_path.iterdir()}})
    begin = np.empty(run.parameters, np.float32)
    initial_parameters(run.model, 7, begin, run.adapter)
    with team(run, 1) as one, team(run, 2) as several:
        done, data, losses = one.compute(ROUND, begin)
        shared_done, shared_data, shared_losses = several.compute(ROUND, begin)
        held_out = [each.worker.evaluate(each.theta, 400) for each in (one, several)]
    assert shared_losses == pytest.approx(losses, rel=1e-6) and losses[-1] < losses[0]
    assert held_out[1] == pytest.approx(held_out[0], rel=1e-6)
    assert shared_done.norm == pytest.approx(done.norm, rel=1e-4)
    apart = np.abs(decoded(run, shared_data) - decoded(run, data))
    assert (apart <= 1.01 * quanta(run, data)).all()


# -- preferences and rollouts ------------------------------------------------------------------------------------------


PAIR = 17
"""Tokens of each text of a pair."""


def reference_of(weights: np.ndarray, path: Path) -> Path:
    """A file of weights in bf16."""
    path.write_bytes((weights.view(np.uint32) >> 16).astype("<u2").tobytes())
    return path


@pytest.mark.slow
def test_ranks_learn_from_preferences_as_one_process(tmp_path: Path) -> None:
    """5 pairs a step, which 2 does not divide; each rank compares its own with the reference weights."""
    shape = Shape(CorpusKind.PREFERENCE, row_tokens=PAIR, block_tokens=2 * PAIR)
    folder = write_corpus(tmp_path / "corpus", shape, {"a": (preferences(1, 40, PAIR), preferences(2, 9, PAIR))})
    sections = small.run_sections(folder, {"a": 1}, format="preference", sequences_per_step=5, beta=0.5)
    run = TrainingConfig.from_sections(sections | {"model": config().model.__dict__})
    begin = theta(run.model)
    reference = str(reference_of(begin * np.float32(0.9), tmp_path / "reference"))
    found = []
    for count in (1, 2):
        with team(run, count) as by:
            done, data, losses = by.compute(replace(ROUND, round=1, reference=reference), begin)
            with pytest.raises(OSError):
                by.worker.evaluation(by.theta, reference=str(tmp_path / "missing"))  # before any other rank is told
            evaluation = by.worker.evaluation(by.theta, reference=reference)
            evaluation.advance(evaluation.total)
            found.append((done, data, losses, evaluation.loss))
    (done, data, losses, held_out), (shared_done, shared_data, shared_losses, shared_held_out) = found
    assert shared_losses == pytest.approx(losses, abs=1e-6)
    assert shared_held_out == pytest.approx(held_out, abs=1e-6)
    assert shared_done.margin == pytest.approx(done.margin, abs=1e-5) and shared_done.accuracy == done.accuracy
    assert (np.abs(decoded(run, shared_data) - decoded(run, data)) <= 1.01 * quanta(run, data)).all()


@pytest.mark.slow
def test_ranks_learn_from_rollouts_as_one_process(tmp_path: Path) -> None:
    """Between two rounds of text, whose optimiser they drop, and with an evaluation on text afterwards."""
    rl = RlConfig(max_tokens=20, row_tokens=40, optimizer_steps=3, lr=1e-3, warmup_steps=0, kl_weight=0.1)
    run = replace(config(), rl=rl.changed(micro_batch_tokens=80))
    begin = theta(run.model)
    reference = reference_of(begin * np.float32(0.9), tmp_path / "reference")

    def learnt(by: Team) -> tuple[Sequence[float], Learnt, bytes, float]:
        text, losses = by.compute(ROUND, begin)[2], list[float]()

        def after_step(steps: int, loss: float, tokens: int, rate: float) -> bool:
            losses.append(loss)
            return False

        learner = Learner(by.worker.config.rl or rl, by.worker.work)
        task = LearnTask(
            order=5, first_step=0, reference=reference, behaviours={1: torch.from_numpy(begin * 0.95).bfloat16()}
        )
        aged = [replace(group, age=number % 2) for number, group in enumerate(groups())]
        done = learner.compute(task, aged, by.theta, by.out, after_step)
        data = bytes(by.out)
        return [*text, *losses, *by.compute(ROUND, begin)[2]], done, data, by.worker.evaluate(by.theta, 400)

    with team(run, 1) as one, team(run, 2) as several:
        (losses, done, data, held_out), (shared_losses, shared, shared_data, shared_held_out) = map(learnt, (one, several))
    assert shared_losses == pytest.approx(losses, rel=1e-6, abs=1e-6)
    assert shared_held_out == pytest.approx(held_out, rel=1e-6)
    assert (shared.tokens, shared.steps, done.steps) == (done.tokens, done.steps, 3)
    assert done.staleness is not None and shared.staleness is not None and done.staleness.kl > 1e-4
    assert [*vars(shared.staleness).values()] == pytest.approx([*vars(done.staleness).values()], abs=1e-5)
    assert [shared.kl, shared.ratio, shared.entropy] == pytest.approx([done.kl, done.ratio, done.entropy], abs=1e-5)
    assert (np.abs(decoded(run, shared_data) - decoded(run, data)) <= 1.01 * quanta(run, data)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "ranks", "codec"), [("qwen3", 2, "int4"), ("llama", 3, "top64")])
def test_the_bytes_of_a_contribution_do_not_depend_on_the_number_of_ranks(family: str, ranks: int, codec: str) -> None:
    """Nor do they in the next round, in which the residual is added: from the memory of each rank."""
    run = replace(config(family), codec=codec, chunk_parameters=4096)
    begin, end = theta(run.model), theta(run.model) * np.float32(1.01)

    def encoded(by: Team) -> tuple[bytes, float]:
        by.theta[:] = end
        by.worker.work.load(by.theta)
        by.theta[:] = begin
        norm = by.worker.work.encode_difference(by.theta, by.out)
        return bytes(by.out), norm

    with team(run, 1) as one:
        wanted = [encoded(one), encoded(one)]
    with team(run, ranks) as several:
        for data, norm in wanted:
            shared_data, shared_norm = encoded(several)
            assert shared_data == data and shared_norm == pytest.approx(norm, rel=1e-12)


@pytest.mark.parametrize(("family", "optimizer", "ranks"), first_fast([("qwen3", "muon", 1), ("llama", "adamw", 2)]))
def test_parameters_in_the_memory_of_the_computer_train_as_on_the_device(family: str, optimizer: str, ranks: int) -> None:
    run = config(family, optimizer=optimizer)
    begin = theta(run.model)
    losses, contributions = [], []
    for each in (run, replace(run, offload=True)):
        with team(each, ranks) as trainer:
            losses.append(trainer.compute(ROUND, begin)[2])
            trainer.theta[:] = begin * np.float32(1.01)
            trainer.worker.work.load(trainer.theta)
            trainer.theta[:] = begin
            trainer.worker.work.encode_difference(trainer.theta, trainer.out)
            contributions.append(bytes(trainer.out))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert contributions[0] == contributions[1]


@pytest.mark.slow
def test_moments_serve_any_number_of_ranks(tmp_path: Path) -> None:
    run, begin = config("qwen2", optimizer="muon"), theta(config("qwen2").model)
    second, third = Task(1, [[20, 40]], 4, 4), Task(2, [[40, 60]], 4, 8)
    with team(run, 1) as steady:
        expected = [steady.compute(task, begin)[2] for task in (ROUND, second, third)]
    found = []
    for ranks, task in ((1, ROUND), (2, second), (1, third)):
        with team(run, ranks, tmp_path) as by:
            found.append(by.compute(task, begin)[2])
            by.worker.work.store_moments()
    for losses, others in zip(found, expected, strict=True):
        assert losses == pytest.approx(others, rel=1e-5)


@pytest.mark.slow
def test_damaged_moments_are_refused_by_all_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run, begin = config(), theta(config().model)
    with team(run, 1, tmp_path) as one:
        fresh = one.compute(ROUND, begin)[2]
        one.worker.work.store_moments()
    raw = bytearray((tmp_path / TEXT).read_bytes())
    raw[-12:-8] = np.float32(-1).tobytes()  # the last square, which only the last rank reads; steps and checksum follow
    raw[-4:] = zlib.crc32(raw[:-4]).to_bytes(4, "little")
    (tmp_path / TEXT).write_bytes(raw)
    with team(run, 2, tmp_path) as several:
        assert several.compute(ROUND, begin)[2] == pytest.approx(fresh, rel=1e-6)
    assert "another rank refuses" in capfd.readouterr().err


# -- other users of the computer ---------------------------------------------------------------------------------------


def listening(*processes: psutil.Process) -> set[Any]:
    """The ports at which these processes can be reached."""
    connections = (each for process in processes for each in process.net_connections())
    return {each.laddr for each in connections if each.status == psutil.CONN_LISTEN}


@pytest.mark.slow
def test_ranks_find_each_other_in_a_file_that_nobody_else_can_open_and_at_no_port() -> None:
    me = psutil.Process()
    before, ending = listening(me), me.children(recursive=True)
    with team(config(), 2) as several:
        store = Path(several.store)
        assert (store.stat().st_mode & 0o777, store.stat().st_nlink) == (0o600, 0) and b"/cpu/" in store.read_bytes()
        ranks = [each for each in me.children(recursive=True) if each not in ending]
        assert len(listening(me, *ranks) - before) == 2, "gloo's alone, one of each rank"


JOIN = """
import sys, torch
from trainer.sharding import join_group
join_group(int(sys.argv[1]), 2, sys.argv[2], sys.argv[3].encode(), torch.device("cpu"))
"""


@pytest.mark.slow
def test_a_stranger_in_the_place_of_a_rank_is_noticed_before_any_work(tmp_path: Path) -> None:
    """It has even the right place in gloo's connections, so that all it lacks is the secret."""
    places = [(number, secret) for number, secret in enumerate(("ours", "another"))]
    ends = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN, str(number), str(tmp_path / "store"), secret], stderr=subprocess.PIPE, text=True
        )
        for number, secret in places
    ]
    said = [end.communicate()[1] for end in ends]
    for number, text in enumerate(said):
        wanted = f"StrangerAmongRanks: another program has connected to rank {number} of the trainer in place of a rank"
        assert wanted in text, text
