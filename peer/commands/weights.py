"""`peer weights`, `peer export` and `peer merge`: blobs here and on their way, and Hugging Face folders."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from peer.commands import Subparsers, add_command, add_run, option, whole_number
from peer.console.asking import show
from peer.errors import ExitCode, PeerError


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
        "push takes the token in HF_TOKEN, begins where the repository ends, and may be killed and started again.",
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
    option(export, "--push hf:OWNER/NAME", "commit the newest state to this repository of a hub instead, with a model card")
    option(
        export,
        "--every ROUNDS",
        "with --push: go on, and push again after so many rounds, and at the end of the run (default: once)",
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


BAR_CELLS = 64
ATTEMPTS = 5
"""Attempts of a single push; with --every it is tried for ever."""


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
        raise PeerError("--every is for --push; name a repository with --push hf:OWNER/NAME", ExitCode.USAGE)
    words = [word for word in (args.run_id, args.folder) if word is not None]
    if not words:
        raise PeerError("name a new folder for the model, or a repository with --push hf:OWNER/NAME", ExitCode.USAGE)
    run_id, folder = words[0] if len(words) == 2 else None, Path(words[-1]).absolute()
    signed = chosen_run(run_id, data)
    done = export(signed, data, folder, args.dtype, args.checkpoint, share_reporter("writing"))
    print(f"run         {signed.run.hex()} ({signed.manifest.name})")
    print(f"rounds      {done.state.rounds}" + (", the final state of the run" if done.state.is_final else ""))
    print(f"parameters  {done.parameters} ({amount(done.parameters)}), {args.dtype}")
    print(f"folder      {folder} ({size(done.size_bytes)})")
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
    """Push the state to a hub, again and again with --every."""
    from functools import partial

    from peer.hubs.pushing import Pusher, PushOptions
    from peer.hubs.repository import HubRepository, repository_name
    from peer.joining.run_source import chosen_run

    if args.folder is not None or args.checkpoint is not None:
        raise PeerError("--push takes the newest state, and no FOLDER; leave out the others", ExitCode.USAGE)
    repository = HubRepository(repository_name(args.push))
    options = PushOptions(args.dtype, args.every, ATTEMPTS if args.every is None else None)
    Pusher(chosen_run(args.run_id, data), data, repository, options, partial(print, flush=True)).run()
    return ExitCode.OK


def run_merge(args: argparse.Namespace) -> int:
    """Merge, and print a summary."""
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
