"""`python -m tests.explore`: run the agreement through all reachable states, every return to a branch, every mutation.

`--quick`: a few seconds.  `--mutations`: only the builds that are broken on purpose, with the shortest way to a split.
`--liars 2`: two of four electors lie, and a split is to be found.  `--json`: the last line is an object with the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.explore.configs import DEFAULT, PARTS_DEFAULT, PARTS_QUICK, QUICK, TWO_LIARS
from tests.explore.memory import Memory
from tests.explore.mutations import MUTATIONS, PARTS, RETURNS, mutated
from tests.explore.parts import Parted, Parting, Parts
from tests.explore.returning import LARGEST, explore_returns
from tests.explore.search import Config, Outcome, Search


@dataclass
class Figures:
    """What was found, over all searches."""

    states: int = 0
    violations: int = 0
    mutations: int = 0
    mutations_found: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small configurations only")
    parser.add_argument("--mutations", action="store_true", help="only the mutations, with their counterexamples")
    parser.add_argument("--liars", type=int, choices=(1, 2), default=1, help="with two liars a split is expected")
    parser.add_argument("--json", action="store_true", help="print an object with the figures on the last line")
    arguments = parser.parse_args()
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.liars == 2:
            explore(TWO_LIARS, Path(folder), figures)
        else:
            if not arguments.mutations:
                explore_all(QUICK if arguments.quick else DEFAULT, Path(folder), figures)
            break_rules(Path(folder), figures, shows=arguments.mutations)
    if arguments.json:
        print(json.dumps(figures.__dict__))
    if arguments.liars == 2:
        return 0 if figures.violations else 1
    return 1 if figures.violations or figures.mutations_found < figures.mutations else 0


def explore_all(configs: tuple[Config, ...], folder: Path, figures: Figures) -> None:
    """All searches, the returns, and the voter that remembers."""
    for config in configs:
        explore(config, folder, figures)
    began = time.perf_counter()
    returned = explore_returns()
    figures.states += returned.stands
    figures.violations += len(returned.flaws)
    seconds = time.perf_counter() - began
    print(f"being away and coming back, 2 to {LARGEST} electors: {returned.stands} states, {seconds:.1f} s", flush=True)
    for flaw in returned.flaws:
        print(f"  VIOLATION {flaw}")
    for parting in PARTS_DEFAULT if configs is DEFAULT else PARTS_QUICK:
        parted = Parts(parting).run()
        figures.states += parted.states
        figures.violations += parted.flaw is not None
        print(f"several tips, {parting}: {read_parted(parted)}", flush=True)
        print_lines(parted.trace)
    began = time.perf_counter()
    remembered = Memory(folder, attempts=2 if configs is DEFAULT else 1).explore()
    figures.states += remembered.states
    figures.violations += remembered.flaw is not None
    seconds = time.perf_counter() - began
    print(f"a voter that remembers against one that forgets: {remembered.states} states, {seconds:.1f} s", flush=True)
    if remembered.flaw is not None:
        print(f"  VIOLATION {remembered.flaw}")


def explore(config: Config, folder: Path, figures: Figures) -> None:
    """One search."""
    outcome = Search(config, folder).run()
    figures.states += outcome.states
    figures.violations += outcome.violation is not None
    print(f"{config}: {read_outcome(outcome)}", flush=True)
    if outcome.violation is not None:
        print_trace(outcome)


def break_rules(folder: Path, figures: Figures, *, shows: bool) -> None:
    """Every mutation, each of which is to be found."""
    for mutation in RETURNS:
        with mutated(mutation):
            returned = explore_returns(smallest=9, largest=10)
        figures.mutations += 1
        figures.mutations_found += bool(returned.flaws)
        print(f"mutation {mutation.name} ({mutation.how}): {len(returned.flaws)} of {returned.stands} states", flush=True)
        if shows and returned.flaws:
            print(f"  {returned.flaws[0]}")
    for mutation in PARTS:
        assert isinstance(mutation.config, Parting)
        with mutated(mutation):
            parted = Parts(mutation.config).run()
        figures.mutations += 1
        figures.mutations_found += parted.flaw is not None
        print(f"mutation {mutation.name} ({mutation.how}): {read_parted(parted)}", flush=True)
        if shows:
            print_lines(parted.trace)
    for mutation in MUTATIONS:
        assert isinstance(mutation.config, Config)
        with mutated(mutation):
            outcome = Search(mutation.config, folder).run()
        figures.mutations += 1
        figures.mutations_found += outcome.violation is not None
        print(f"mutation {mutation.name} ({mutation.how}): {read_outcome(outcome)}", flush=True)
        if shows:
            print_trace(outcome)


def read_outcome(outcome: Outcome) -> str:
    """The figures of a search in words."""
    end = outcome.violation or ("no violation" if outcome.exhaustive else "no violation so far; stopped, not exhaustive")
    return f"{outcome.states} states, depth {outcome.depth}, {outcome.seconds:.1f} s: {end}"


def read_parted(parted: Parted) -> str:
    """The figures of a search of several tips, in words."""
    end = parted.flaw or ("no violation" if parted.exhaustive else "no violation so far; stopped, not exhaustive")
    return f"{parted.states} states, {parted.settlings} ways to settle, {parted.seconds:.1f} s: {end}"


def print_trace(outcome: Outcome) -> None:
    """The steps to a violation."""
    print_lines(outcome.trace)


def print_lines(lines: Sequence[str]) -> None:
    """Numbered lines."""
    for number, line in enumerate(lines, 1):
        print(f"  {number:>2}. {line}")


if __name__ == "__main__":
    sys.exit(main())
