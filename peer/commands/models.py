"""`peer weights`, `export`, `merge`, `eval` and `chat`: commands about models and their transfers."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from peer.commands import Subparsers, add_command, add_run, option, whole_number
from peer.console.asking import print_result, show
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.weights.held_out import HeldOutOptions


def register(subparsers: Subparsers) -> None:
    """Describe the command lines."""
    add_command(
        subparsers,
        "weights",
        "show the states that this peer serves, and the running transfers",
        run_weights,
        epilog="`peer export` writes the model to a folder.",
        json=True,
    )
    export = add_command(
        subparsers,
        "export",
        "write the model to a Hugging Face folder, or push it to a hub",
        run_export,
        epilog="It reads only this computer's disk, whether the peer runs or not.  transformers can load the folder.  A "
        "push uses the token in HF_TOKEN, continues after the state in the repository, and may be killed and started again.",
    )
    add_run(export)
    option(export, "folder FOLDER", "new folder for the model; none with --push", nargs="?")
    option(
        export,
        "--checkpoint ROUNDS",
        "write the checkpoint after this many rounds (default: the newest state)",
        type=whole_number(0, 1 << 53),
    )
    option(
        export, "--dtype", "number format: bf16, rounded (default), or fp32, exact", choices=["bf16", "fp32"], default="bf16"
    )
    option(
        export,
        "--merged",
        "of a run with an adapter, write the whole model with the factors added, instead of a folder of PEFT",
        action="store_true",
    )
    option(export, "--push hf:OWNER/NAME", "commit the newest state to this repository of a hub instead, with a model card")
    option(
        export,
        "--every ROUNDS",
        "with --push: keep running, and push again after this many rounds and at the end of the run (default: once)",
        type=whole_number(1, 1 << 53),
    )
    merge = add_command(
        subparsers,
        "merge",
        "merge models of one shape into a new Hugging Face folder",
        run_merge,
        epilog="Reads folders as `peer export` or transformers write them.  The tokenizer and the configuration are "
        "those of the first model, or of the base with ties.",
    )
    option(merge, "models MODEL", "a folder with a model", nargs="+")
    option(merge, "folder FOLDER", "new folder for the merged model")
    option(
        merge,
        "--rule",
        "linear: the weighted mean (default); slerp: a point on the arc between two models; ties: the differences "
        "of several models from a base, without those that contradict each other",
        choices=["linear", "slerp", "ties"],
        default="linear",
    )
    option(merge, "--weights W,W,…", "weight of each model (default: all equal)", type=_weights)
    option(merge, "--t T", "slerp: position between the first model (0) and the second (1); default 0.5", type=float)
    option(merge, "--base MODEL", "ties: folder of the model from which all others were trained")
    option(
        merge, "--density SHARE", "ties: share of each model's differences that is kept, the largest first (0.2)", type=float
    )
    option(merge, "--scale FACTOR", "ties: factor on the differences that are added to the base (1)", type=float)
    option(merge, "--dtype", "number format: bf16, rounded (default), or fp32", choices=["bf16", "fp32"], default="bf16")
    evaluate = add_command(
        subparsers,
        "eval",
        "measure a model on the held-out rows of a corpus, or by tasks of lm-evaluation-harness",
        run_eval,
        epilog="With --corpus it prints the loss in nats per token, the perplexity, and the bits for each byte of text, by "
        "source.  In chats only the assistant's messages count, and in preferences only the chosen answers.  With "
        "--harness it prints the metrics of each task.",
        json=True,
    )
    option(
        evaluate,
        "model MODEL",
        "a folder with a model, as `peer export` or transformers write it, or a run ID or its beginning for the newest "
        "state of the run on this computer",
    )
    measure = evaluate.add_mutually_exclusive_group(required=True)
    option(measure, "--corpus FOLDER", "a corpus, as `peer data build` makes it")
    option(
        measure,
        "--harness TASK,TASK,…",
        "tasks of lm-evaluation-harness, such as arc_easy,hellaswag, or YAML files that describe some (extra `eval`)",
    )
    option(evaluate, "--limit N", "with --harness: questions of each task (default: all)", type=whole_number(1, 1 << 40))
    option(
        evaluate,
        "--tokens N",
        "approximate number of held-out tokens of each source (default: 65536)",
        type=whole_number(1, 1 << 40),
        default=1 << 16,
    )
    option(
        evaluate,
        "--length N",
        "tokens predicted in a row of text (default: as in the run; for a folder 1024, or fewer if the model reads fewer)",
        type=whole_number(1, 1 << 17),
    )
    option(
        evaluate,
        "--documents",
        "masked: no document in a row sees another; joined: a row is one text (default: as in the run; for a folder masked)",
        choices=["masked", "joined"],
    )
    option(evaluate, "--device NAME", "cpu, cuda, … (default: a GPU if there is one)", default="auto")
    chat = add_command(
        subparsers,
        "chat",
        "talk to the newest state of a run, or to an exported model",
        run_chat,
        epilog="In a terminal, /help lists the commands of the conversation.  Text from a pipe gets one answer: "
        "`echo text | peer chat FOLDER`.",
    )
    option(
        chat,
        "model MODEL",
        "a run ID or its beginning for its newest state on this computer, or a folder with a model, as `peer export` "
        "or transformers write it (default: the running run, else the latest one here)",
        nargs="?",
    )
    option(chat, "--temp X", "temperature (default: 0.7; 0: the most probable tokens)", type=_temperature, default=0.7)
    option(
        chat,
        "--max-tokens N",
        "tokens of an answer; at most half of what the model reads (default: 512)",
        type=whole_number(1, 1 << 16),
        default=512,
    )
    option(chat, "--device NAME", "cpu, cuda, … (default: a GPU if there is one and no peer trains here)", default="auto")
    option(chat, "--json", "one JSON object for the answer to a text from a pipe")


BAR_CELLS = 64
ATTEMPTS = 5
"""Number of attempts of a single push; with --every there is no limit."""


def run_weights(args: argparse.Namespace) -> int:
    """Print the running peer's blobs and transfers; exit code 5 when no peer runs here."""
    return show(args, "weights", describe_weights)


def describe_weights(status: dict[str, Any]) -> list[str]:
    """Return the transfers and the served states as lines for a person."""
    from peer.formatting import chunk_map
    from protocol.events.events import TransferProgress

    lines = [f"run     {status['run']}"]
    for each in status["coming"]:
        lines += [f"coming  {TransferProgress(**each).progress()}", f"        {chunk_map(each['chunks'], BAR_CELLS)}"]
    return lines + _served(status["blobs"])


def _served(blobs: list[dict[str, Any]]) -> list[str]:
    """Return a line for the checkpoints, and a line for the results, that other peers can fetch from here."""
    from protocol.formatting import size

    lines: list[str] = []
    for what, of in (("checkpoint", "after round"), ("result", "of round")):
        held = [blob for blob in blobs if blob["what"] == what]
        numbers = sorted({blob["number"] for blob in held})
        if held:
            span = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
            many = f"{len(held)} {what}{'s' if len(held) > 1 else ''}"
            total = size(sum(blob["size_bytes"] for blob in held))
            lines.append(f"{'serves' if not lines else '':<8}{many} ({of}{'s' if len(numbers) > 1 else ''} {span}; {total})")
    return lines


def run_export(args: argparse.Namespace) -> int:
    """Find the run, write its model, and say what was written."""
    from peer.console.streams import share_reporter
    from peer.joining.run_source import chosen_run
    from peer.weights.folders import export
    from protocol.formatting import amount, size

    data = args.data_dir
    if args.push is not None:
        return _push(args, data)
    if args.every is not None:
        raise PeerError("--every is allowed only with --push; name a repository with --push hf:OWNER/NAME", ExitCode.USAGE)
    words = [word for word in (args.run_id, args.folder) if word is not None]
    if not words:
        raise PeerError("name a new folder for the model, or a repository with --push hf:OWNER/NAME", ExitCode.USAGE)
    run_id, folder = words[0] if len(words) == 2 else None, Path(words[-1]).absolute()
    signed = chosen_run(run_id, data)
    adapter, base = signed.manifest.adapter, signed.manifest.base
    if args.merged and adapter is None:
        raise PeerError("the run trains a whole model, so there is nothing to merge; leave --merged out", ExitCode.USAGE)
    done = export(signed, data, folder, args.dtype, args.checkpoint, share_reporter("writing"), merged=args.merged)
    print(f"run         {signed.run.hex()} ({signed.manifest.name})")
    print(f"rounds      {done.state.rounds}" + (", the final state of the run" if done.state.is_final else ""))
    print(f"parameters  {done.parameters} ({amount(done.parameters)}), {args.dtype}")
    if adapter is not None and not args.merged:
        print(f"adapter     rank {adapter.rank}, for PEFT; --merged writes the whole model")
    print(f"folder      {folder} ({size(done.size_bytes)})")
    if base is not None and base.format != "bf16":
        print(
            f"base        in {base.format}: the adapter was trained beside these values, "
            + (
                "to which it is added here"
                if args.merged
                else "and fits the published ones less well (--merged adds it to them)"
            )
        )
    if done.remark:
        print(f"tokenizer   {done.remark}")
    if not done.tokenizer:
        print(
            "The folder has no tokenizer: the run reads bytes, and a token's number is the byte's value."
            if signed.manifest.model.vocab == 256
            else "The folder has no tokenizer: this computer does not have the run's; copy it from the model that the "
            "run began with."
        )
    return ExitCode.OK


def _push(args: argparse.Namespace, data: Path) -> int:
    """Push the state to a hub, repeatedly with --every."""
    from functools import partial

    from peer.hubs.pushing import Pusher, PushOptions
    from peer.hubs.repository import HubRepository, repository_name
    from peer.joining.run_source import chosen_run

    if args.folder is not None or args.checkpoint is not None or args.merged:
        raise PeerError(
            "--push always takes the newest state as it is and needs no FOLDER; leave out --checkpoint, --merged and FOLDER",
            ExitCode.USAGE,
        )
    repository = HubRepository(repository_name(args.push))
    options = PushOptions(args.dtype, args.every, ATTEMPTS if args.every is None else None)
    Pusher(chosen_run(args.run_id, data), data, repository, options, partial(print, flush=True)).run()
    return ExitCode.OK


def run_merge(args: argparse.Namespace) -> int:
    """Merge models, and print a summary."""
    from peer.console.streams import share_reporter
    from peer.weights.folders import MergeOptions, merge
    from protocol.formatting import amount, size

    models, folder = [Path(model).absolute() for model in args.models], Path(args.folder).absolute()
    base = None if args.base is None else Path(args.base).absolute()
    options = MergeOptions(args.rule, args.weights, args.t, base, args.density, args.scale)
    done = merge(models, folder, options, args.dtype, share_reporter("merging"))
    print(f"rule        {args.rule}")
    print(f"models      {len(models)}{' and their base' * (base is not None)}")
    print(f"parameters  {done.parameters} ({amount(done.parameters)}), {args.dtype}")
    print(f"folder      {folder} ({size(done.size_bytes)})")
    if not done.tokenizer:
        print("The folder has no tokenizer, because the model that gives its configuration has none.")
    return ExitCode.OK


def _weights(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text} is not a list of weights; give numbers with commas between them"
        ) from error


# ------------------------------------------------------------------------------------------------------------------------
# Evaluation.


def run_eval(args: argparse.Namespace) -> int:
    """Measure a model, and print a line for each source, or for each metric of a task."""
    from peer.console.streams import share_reporter
    from peer.formatting import table
    from peer.weights.held_out import measure
    from protocol.formatting import number

    if args.harness is not None:
        return _run_harness(args)
    if args.limit is not None:
        raise PeerError("--limit is allowed only with --harness; use --tokens to limit a corpus", ExitCode.USAGE)
    corpus = Path(args.corpus).absolute()
    with _evaluated(args) as (name, folder, options):
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

    with _evaluated(args) as (name, folder, _):
        results = evaluate(folder, HarnessOptions(args.harness.split(","), args.limit, args.device), _show)
    rows = [("TASK", "METRIC", "VALUE", "ERROR", "SHOTS", "QUESTIONS")]
    for each in results.scores:
        figures = (f"{each.value:.4f}", number(each.error, 4), str(each.shots), number(each.samples, 0))
        rows.append((each.task, each.metric, *figures))
    fields = {"model": name, "harness": results.version, "scores": [asdict(each) for each in results.scores]}
    return print_result(args, fields, table(rows, numbers=range(2, 6)))


def _show(text: str) -> None:
    """Print the harness's output on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        print("".join(each for each in text if each.isprintable() or each in "\r\n"), end="", file=sys.stderr, flush=True)


@contextmanager
def _evaluated(args: argparse.Namespace) -> Iterator[tuple[str, Path, HeldOutOptions]]:
    """Yield the name of the model, its folder, and the options; a run's state is exported to a temporary folder."""
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
        export(signed, data, written, "fp32", None, share_reporter("writing"), merged=True)
        yield signed.run.hex(), written, options


# ------------------------------------------------------------------------------------------------------------------------
# Conversation.


def run_chat(args: argparse.Namespace) -> int:
    """Talk with a model, or answer the text of a pipe."""
    # Before torch is loaded: OpenMP's idle threads sleep, instead of keeping a core busy that a trainer could use.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from peer.chat.model import ChatSource
    from peer.chat.terminal import ChatSession, ChatTerminal, answer_once, read_text
    from peer.console.streams import share_reporter

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal whose encoding lacks a character shows its number
    talks = sys.stdin.isatty()
    if talks and args.json:
        raise PeerError("--json answers a text from a pipe: echo text | peer chat --json", ExitCode.USAGE)
    text = "" if talks else read_text()
    source = ChatSource(args.model, args.data_dir, share_reporter("reading"))
    chat = ChatSession(source, args.device, args.temp, args.max_tokens)
    if not talks:
        return answer_once(chat, text, as_json=args.json)
    import readline  # noqa: F401 - lets `input` edit lines and remember them

    return ChatTerminal(chat).run()


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 10")
    return value
