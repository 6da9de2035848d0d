"""`peer`, whose trainer process makes rollouts in its own way.

`WRITER` in the environment names the way:

int8: the layers' matrices have 255 levels in each output channel.
steering: of tokens that are nearly tied it takes a letter.

A way that ends in `IN_BF16` computes in bf16; `BF16` is an honest peer that does, for swarms of mixed precision.
"""

from __future__ import annotations

from tests.e2e.own_trainer import run

WRITER = "WRITER"
INT8, STEERING = WRITERS = ("int8", "steering")
IN_BF16 = " in bf16"
BF16 = f"honest{IN_BF16}"


def run_trainer(way: str) -> int:
    """Be a trainer process that makes rollouts in this way."""
    import torch

    from benchmarks.detection_forgeries import Steered
    from benchmarks.evidence_peers import WITHIN, by_channel
    from trainer.__main__ import main
    from trainer.generate.engine import Batch, Engine
    from trainer.rl import worker

    cheat = way.removesuffix(IN_BF16)
    if cheat != way:
        vars(worker)["default_dtype"] = lambda device: torch.bfloat16
    if cheat == STEERING:
        steered = Steered(WITHIN)
        Batch.choose = lambda batch, *arguments: steered(*arguments)  # type: ignore[method-assign,assignment]
    elif cheat == INT8:
        load = Engine.load

        def in_int8(engine: Engine, flat: torch.Tensor) -> None:
            load(engine, torch.from_numpy(by_channel(engine._config, flat.float().numpy(), 127)))

        Engine.load = in_int8  # type: ignore[method-assign,assignment]
    elif way != BF16:
        raise ValueError(f"{WRITER} is one of {', '.join(WRITERS)} or {BF16!r}, not {way!r}")
    return main()


if __name__ == "__main__":
    run("tests.e2e.cheating_writer", WRITER, run_trainer)
