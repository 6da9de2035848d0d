"""Modified versions of `peer`, which cheat in `peer demo --cheat`.

    python -m peer.demo.cheats rollout join …      ends each answer after two tokens
    python -m peer.demo.cheats validator join …    reverses its verdict on each rollout

Everything else, including signatures and proofs, is done as in the ordinary program: a cheat's messages are well-formed, and
only the other peers' checks reveal that they are wrong.  The trainer process makes the completions, so the lazy peer also
starts a modified trainer.
"""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from typing import Any

TOKENS = 3
"""Tokens of a lazy peer's output, with the end token.  The peer needs a few steps where other peers need many."""
TRAINER = "trainer"


def be_lazy() -> None:
    """Have the peer process start this program as its trainer process."""
    from peer.trainer_process import process

    process.PROGRAM = ("peer.demo.cheats", TRAINER)


def cut_outputs() -> None:
    """End each output early in the trainer process, with an end token and with proofs of the remaining tokens."""
    from trainer.data.tokens import ByteTokenizer
    from trainer.generate.generator import Completion, Request
    from trainer.rl import worker

    honest_requests, honest_rollout = worker.RolloutWorker._requests, worker._rollout

    def requests(*arguments: Any) -> Any:
        return (replace(request, max_tokens=TOKENS) for request in honest_requests(*arguments))

    def rollout(assignment: Any, request: Request, completion: Completion) -> Any:
        end = ByteTokenizer().end
        if completion.output[-1] != end:  # its proof needs only the tokens before it, so the shorter proof stays valid
            completion = replace(completion, output=(*completion.output[:-1], end))
        return honest_rollout(assignment, request, completion)

    worker.RolloutWorker._requests = requests  # type: ignore[assignment,method-assign]
    worker._rollout = rollout


def lie() -> None:
    """Reverse each verdict in the peer process."""
    from protocol.rollouts import worker
    from protocol.trainer_link import RolloutVerdict
    from protocol.wire.rollouts import Reason, Verdict

    honest = worker.code_of

    def contrary(verdict: RolloutVerdict) -> int:
        if verdict.verdict is Verdict.ACCEPT:
            return honest(replace(verdict, verdict=Verdict.REJECT, reason=Reason.WRONG_COMPUTATION))
        return honest(replace(verdict, verdict=Verdict.ACCEPT, reason=Reason.NONE))

    worker.code_of = contrary


PROGRAMS = {"rollout": (be_lazy, "peer"), "validator": (lie, "peer"), TRAINER: (cut_outputs, "trainer")}
"""Change to the honest program, and the program to run after the change, by name."""

if __name__ == "__main__":
    spoil, program = PROGRAMS[sys.argv.pop(1)]
    spoil()
    runpy.run_module(program, run_name="__main__", alter_sys=True)
