"""`peer`, spoiled: the peers that cheat in `peer demo --cheat`.

    python -m peer.demo.cheats rollout join …      writes two tokens of each answer, and calls that the end
    python -m peer.demo.cheats validator join …    says of each rollout the contrary of what it found

All else is the ordinary program's, its signatures and proofs included: what such a peer states is well-formed, and nothing
but the others' checks tells that it is wrong.  The completions are made in the trainer process, so the lazy one starts that
spoiled as well.
"""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from typing import Any

TOKENS = 3
"""Of a lazy peer's output, the end token among them.  It does in a few steps what takes others many."""
TRAINER = "trainer"


def be_lazy() -> None:
    """In the peer process: have the trainer process be this program."""
    from peer.trainer_process import process

    process.PROGRAM = ("peer.demo.cheats", TRAINER)


def cut_outputs() -> None:
    """In the trainer process: end each output early, with an end token and with proofs of what there is."""
    from trainer.data.tokens import ByteTokenizer
    from trainer.generate.engine import Completion, Ended, Request
    from trainer.rl import worker

    honest_requests, honest_rollout = worker.RolloutWorker._requests, worker._rollout

    def requests(*arguments: Any) -> Any:
        return (replace(request, max_tokens=TOKENS) for request in honest_requests(*arguments))

    def rollout(assignment: Any, request: Request, completion: Completion) -> Any:
        if completion.ended is Ended.LENGTH:  # a token is proven by what came before it, so this leaves the proof whole
            completion = replace(completion, output=(*completion.output[:-1], ByteTokenizer().end))
        return honest_rollout(assignment, request, completion)

    worker.RolloutWorker._requests = requests  # type: ignore[assignment,method-assign]
    worker._rollout = rollout


def lie() -> None:
    """In the peer process: turn each verdict around."""
    from protocol.rollouts import checking
    from protocol.trainer_link import RolloutVerdict
    from protocol.wire.rollouts import Reason, Verdict

    honest = checking.code_of

    def contrary(verdict: RolloutVerdict) -> int:
        if verdict.verdict is Verdict.ACCEPT:
            return honest(replace(verdict, verdict=Verdict.REJECT, reason=Reason.WRONG_COMPUTATION))
        return honest(replace(verdict, verdict=Verdict.ACCEPT, reason=Reason.NONE))

    checking.code_of = contrary


PROGRAMS = {"rollout": (be_lazy, "peer"), "validator": (lie, "peer"), TRAINER: (cut_outputs, "trainer")}
"""What is spoiled, and the program that runs then."""

if __name__ == "__main__":
    spoil, program = PROGRAMS[sys.argv.pop(1)]
    spoil()
    runpy.run_module(program, run_name="__main__", alter_sys=True)
