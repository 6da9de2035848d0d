"""Cost of codecs with fewer bits: the loss with each codec of the ladder, over the loss of an exchange in fp32.

Members train apart as in `benchmarks.diloco`, from the same warm start and on the same text, with the program's own codecs,
error feedback, averages and outer step; only the network is left out.  The fp32 exchange has the outer step of the dense
codecs; a codec has its own.  Besides codecs of the ladder, `--codecs` takes pairs of formats,
CONTRIBUTION[:FEEDBACK]/RESULT.

    python -m benchmarks.ladder [--save FILE] [--json] [--quick] [--codecs int8,int4] [--seeds 0,1,2] [--members 4,8]
        [--inner-steps 30,100] [--outer auto]

With one thread and fixed seeds, the same machine gives the same table.  `--save` keeps finished runs in a file, so that an
interrupted table continues from there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.diloco import Progress, numbers, percent
from benchmarks.diloco_bench import FP32, QUICK, Bench, Case, Settings, codec_of, layouts_for
from kernels.codecs.ladder import LADDER


@dataclass(frozen=True)
class Row:
    """One line of the table.

    bits: the bits of a contribution and a result for each parameter.  excess: the excess loss in percent, seed by seed.
    """

    codec: str
    members: int
    inner_steps: int
    bits: tuple[float, float]
    wire_bytes: float
    excess: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "codec": self.codec,
            "members": self.members,
            "inner_steps": self.inner_steps,
            "bits": self.bits,
            "wire_bytes": self.wire_bytes,
            "excess_percent": self.excess,
        }


@dataclass(frozen=True)
class Table:
    """Cases to measure.  outer: the outer step of the codecs; the fp32 exchange has "auto"."""

    settings: Settings
    seeds: Sequence[int]
    members: Sequence[int]
    lengths: Sequence[int]
    codecs: Sequence[str]
    outer: str = "auto"

    def case(self, seed: int, members: int, inner_steps: int, exchange: str) -> Case:
        outer = "auto" if exchange == FP32 else self.outer
        return Case(seed, members, (self.settings.steps_of(inner_steps),), inner_steps, outer, exchange)

    def cases(self) -> Iterator[Case]:
        """Yield all runs, seed after seed, so that an unfinished table is already useful."""
        for seed in self.seeds:
            for members in self.members:
                for length in self.lengths:
                    for exchange in (FP32, *self.codecs):
                        yield self.case(seed, members, length, exchange)

    def rows(self, losses: Mapping[Case, list[float]], parameters: int) -> Iterator[Row]:
        for members in self.members:
            for length in self.lengths:
                base = [losses[self.case(seed, members, length, FP32)][0] for seed in self.seeds]
                for codec in self.codecs:
                    found = [losses[self.case(seed, members, length, codec)][0] for seed in self.seeds]
                    layouts = layouts_for(parameters, codec)
                    sent, result = (8 * layout.payload_bytes / parameters for layout in layouts[1:])
                    wire = (members - 1) / members * layouts.exchanged_bytes
                    yield Row(codec, members, length, (sent, result), wire, tuple(percent(found, base)))


def print_table(rows: Sequence[Row]) -> None:
    print("| codec | members | H | bits of a contribution, of a result | KB sent in a round | over fp32, mean (each seed) |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        each = ", ".join(f"{value:+.2f}" for value in row.excess)
        print(
            f"| {row.codec} | {row.members} | {row.inner_steps} | {row.bits[0]:.2f}, {row.bits[1]:.2f} "
            f"| {row.wire_bytes / 1e3:.1f} | {statistics.fmean(row.excess):+.2f} % ({each}) |"
        )


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.ladder", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few steps: shows that it works, and no more")
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2])
    parser.add_argument("--members", type=numbers, default=[4, 8])
    parser.add_argument("--inner-steps", type=numbers, default=[30, 100], help="inner steps in a round (H)")
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=[*LADDER])
    parser.add_argument("--outer", default="auto", help='"auto", or RATE/MOMENTUM for all codecs')
    parser.add_argument("--save", type=Path, help="file of finished runs; they are not run again")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    torch.set_num_threads(1)
    for codec in options.codecs:
        codec_of(codec)
    table = Table(Settings(), options.seeds, options.members, options.inner_steps, options.codecs, options.outer)
    if options.quick:
        table = Table(QUICK, options.seeds[:1], [2], [3], options.codecs, options.outer)
    began, progress, cases = time.monotonic(), Progress(table.settings, options.save), [*table.cases()]
    bench = Bench(table.settings)
    for number, case in enumerate(cases, 1):
        if case not in progress.losses:
            progress.add(case, bench.run(case))
            loss = progress.losses[case][0]
            print(f"{time.monotonic() - began:5.0f} s  {number} of {len(cases)}  {case}: {loss:.4f}", file=sys.stderr)
    parameters = bench.member(0).config.model.parameters
    rows = [*table.rows(progress.losses, parameters)]
    print(f"outer {table.outer}, {parameters} parameters, seeds {table.seeds}\n")
    print_table(rows)
    if options.json:
        print(
            json.dumps({"settings": asdict(table.settings), "outer": table.outer, "rows": [row.as_json() for row in rows]})
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
