"""Prompts name a length, the same one for everybody, and other lengths cost reward."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.formats.rl import RlConfig
from tests.trainer.rl.honest import CPU, FAMILIES, TOKENIZER, Letters, parameters
from trainer.data.templates import TemplatedTokenizer
from trainer.data.tokens import ByteTokenizer
from trainer.rl.groups import TargetedEnvironment, most_prompt_bytes, prompt_flaw, with_target
from trainer.rl.verification import Assignment, RejectionReason
from trainer.rl.worker import RolloutTasks, RolloutWorker, decode_batch

ASSIGNED = Assignment(b"run", 5, "12D3KooWworker", (7, 4), 3)
RL = RlConfig(
    max_tokens=24,
    row_tokens=96,
    micro_batch_tokens=256,
    top_k=32,
    chunk_tokens=8,
    length_targets=[2, 30],
    length_weight=0.01,
)


def worker(rl: RlConfig, seed: int = 1) -> RolloutWorker:
    model = FAMILIES["llama"]
    made = RolloutWorker(rl, model, RolloutTasks(Letters(), TOKENIZER, seed), CPU)
    made.keep_version(ASSIGNED.version, parameters(model, seed=ASSIGNED.version))
    return made


def test_the_target_is_named_in_the_prompt_and_the_same_for_everybody() -> None:
    drawn, again, others = (
        [TargetedEnvironment(Letters(), (10, 20, 30), seed).target(problem) for problem in range(300)] for seed in (1, 1, 2)
    )
    assert drawn == again != others
    assert {count: drawn.count(count) > 60 for count in (10, 20, 30)} == {10: True, 20: True, 30: True}
    assert with_target("2 + 2?\n", 20) == "2 + 2? Think for 20 tokens before giving a response.\n"
    assert TargetedEnvironment(Letters(), (), 1).target(0) is None and with_target("2 + 2?", None) == "2 + 2?"
    longest = with_target("x" * most_prompt_bytes(200, 100, (5, 1000)), 1000)
    assert len(longest) == 101 and most_prompt_bytes(200, 100, ()) == 101


def test_a_runs_rollouts_answer_prompts_with_lengths_and_are_rewarded_by_them(tmp_path: Path) -> None:
    path, targeted = tmp_path / "batch", TargetedEnvironment(Letters(), RL.length_targets, 1)
    worker(RL).generate(ASSIGNED, path)
    rollouts = decode_batch(path.read_bytes())
    assert [TOKENIZER.decode(each.prompt) for each in rollouts[::3]] == [targeted.problem(each).prompt for each in (7, 4)]
    assert [each.reason for each in worker(RL).verify(ASSIGNED, path)] == [None] * 6
    plain = worker(RL.changed(length_targets=[])).verify(ASSIGNED, path)
    assert {each.reason for each in plain} == {RejectionReason.WRONG_PROMPT}
    for group in worker(RL).groups([path]):
        for member in group.members:
            target = targeted.target(member.rollout.problem)
            assert target is not None
            assert member.reward == pytest.approx(member.solved - 0.01 * abs(target - sum(member.rollout.made)))


@pytest.mark.parametrize(
    ("prompt", "flaw"),
    [
        ("one\ntwo", ""),
        ("one! two", "ends a turn"),
        ("\x01\x02", "0 tokens"),
        ("y" * 80, "81 tokens, and this run learns from prompts of 1 to 80"),
        ("z" * 20, " tokens, and this run"),
    ],
    ids=[
        "good",
        "an end token in a text",
        "nothing is left",
        "too long",
        "too long with a length of few letters and many tokens",
    ],
)
def test_a_prompt_that_would_end_the_generating_process_is_known_before(prompt: str, flaw: str) -> None:
    targets = {"y": (5, 100), "z": (7, 100)}.get(prompt[0], ()) if len(prompt) < 80 else ()
    found = prompt_flaw(prompt, TemplatedTokenizer(Fastidious(), "raw"), 100, 21, targets)
    assert flaw in found if flaw else not found


class Fastidious(ByteTokenizer):
    """Ends a turn with a mark that texts have, as tokenizers may, leaves out what cannot be printed, adds a token, and has
    no short one for a seven."""

    ends = (ord("!"),)

    def encode(self, text: str) -> list[int]:
        tokens = [token for token in super().encode(text.replace("7", "seven" * 8)) if token >= 10]
        return [*tokens, ord("y")] if tokens else []
