"""`peer eval`: an exported model, or a run's newest state, measured on a corpus, or by tasks of lm-evaluation-harness."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from peer.commands import Subparsers, add_command, option, whole_number
from peer.console.asking import print_result
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.weights.held_out import HeldOutOptions


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "eval",
        "measure a model on the held-out rows of a corpus, or by tasks of lm-evaluation-harness",
        run,
        epilog="With --corpus it prints the loss in nats per token, the perplexity, and the bits for each byte of text, by "
        "source.  Of chats the assistant's messages count, and of preferences the chosen answers.  With --harness it prints "
        "the metrics of each task.",
        json=True,
    )
    option(
        parser,
        "model MODEL",
        "a folder with a model, as `peer export` or transformers write it, or a run ID or its beginning for the newest "
        "state of the run on this computer",
    )
    measure = parser.add_mutually_exclusive_group(required=True)
    option(measure, "--corpus FOLDER", "a corpus, as `peer data build` makes it")
    option(
        measure,
        "--harness TASK,TASK,…",
        "tasks of lm-evaluation-harness, such as arc_easy,hellaswag, or YAML files that describe some (extra `eval`)",
    )
    option(parser, "--limit N", "with --harness: questions of each task (default: all)", type=whole_number(1, 1 << 40))
    option(
        parser,
        "--tokens N",
        "held-out tokens of each source, about (default: 65536)",
        type=whole_number(1, 1 << 40),
        default=1 << 16,
    )
    option(
        parser,
        "--length N",
        "tokens predicted in a row of text (default: as in the run; of a folder 1024, or fewer if it reads fewer)",
        type=whole_number(1, 1 << 17),
    )
    option(
        parser,
        "--documents",
        "masked: no document in a row sees another; joined: a row is one text (default: as in the run; of a folder masked)",
        choices=["masked", "joined"],
    )
    option(parser, "--device NAME", "cpu, cuda, … (default: a GPU if there is one)", default="auto")


def run(args: argparse.Namespace) -> int:
    """Measure, and print a line for each source, or for each metric of a task."""
    from peer.console.streams import share_reporter
    from peer.formatting import table
    from peer.weights.held_out import measure
    from protocol.formatting import number

    if args.harness is not None:
        return _run_harness(args)
    if args.limit is not None:
        raise PeerError("--limit is for --harness; bound a corpus with --tokens", ExitCode.USAGE)
    corpus = Path(args.corpus).absolute()
    with _model(args) as (name, folder, options):
        losses = measure(folder, corpus, options, share_reporter("measuring"))
    sources = [{**asdict(each), "perplexity": each.perplexity} for each in losses]
    rows = [("SOURCE", "TOKENS", "LOSS", "PERPLEXITY", "BITS PER BYTE")]
    for each in losses:
        bits = number(each.bits_per_byte, 4)
        rows.append((each.source, str(each.tokens), f"{each.loss:.4f}", f"{each.perplexity:.2f}", bits))
    return print_result(args, {"model": name, "corpus": str(corpus), "sources": sources}, table(rows, numbers=range(1, 5)))


def _run_harness(args: argparse.Namespace) -> int:
    from peer.formatting import table
    from peer.weights.harness import HarnessOptions, evaluate
    from protocol.formatting import number

    with _model(args) as (name, folder, _):
        results = evaluate(folder, HarnessOptions(args.harness.split(","), args.limit, args.device), _show)
    rows = [("TASK", "METRIC", "VALUE", "ERROR", "SHOTS", "QUESTIONS")]
    for each in results.scores:
        figures = (f"{each.value:.4f}", number(each.error, 4), str(each.shots), number(each.samples, 0))
        rows.append((each.task, each.metric, *figures))
    fields = {"model": name, "harness": results.version, "scores": [asdict(each) for each in results.scores]}
    return print_result(args, fields, table(rows, numbers=range(2, 6)))


def _show(text: str) -> None:
    """Show what the harness says to a person at a terminal."""
    if sys.stderr.isatty():
        print("".join(each for each in text if each.isprintable() or each in "\r\n"), end="", file=sys.stderr, flush=True)


@contextmanager
def _model(args: argparse.Namespace) -> Iterator[tuple[str, Path, HeldOutOptions]]:
    """Give the name of the model, its folder, and the options; a run's state is written to a folder that does not stay."""
    from peer.console.streams import share_reporter
    from peer.joining.run_source import chosen_run
    from peer.paths import make_private
    from peer.weights.folders import export
    from peer.weights.held_out import HeldOutOptions

    folder = Path(args.model).absolute()
    if folder.is_dir():
        yield str(folder), folder, HeldOutOptions(args.tokens, args.length, args.documents or "masked", args.device)
        return
    data = args.data_dir
    signed = chosen_run(args.model, data, or_folder=True)
    said = signed.manifest.data
    length, documents = args.length or (said.sequence_length if said.format == "text" else None), args.documents
    options = HeldOutOptions(args.tokens, length, documents or said.documents, args.device)
    with TemporaryDirectory(prefix=".eval-", dir=make_private(data)) as place:
        written = Path(place) / "model"
        export(signed, data, written, "fp32", None, share_reporter("writing"))
        yield signed.run.hex(), written, options
