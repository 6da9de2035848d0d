"""`peer merge`: several Hugging Face folders made into one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.errors import ExitCode

if TYPE_CHECKING:
    from peer.commands import Subparsers


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "merge",
        "merge models of one shape into a new Hugging Face folder",
        run,
        epilog="Reads folders as `peer export` or transformers write them.  Tokenizer and configuration are the first "
        "model's, with ties the base's.",
    )
    parser.add_argument("models", metavar="MODEL", nargs="+", help="a folder with a model")
    parser.add_argument("folder", metavar="FOLDER", help="a new folder, which will have the merged model")
    parser.add_argument(
        "--rule",
        choices=["linear", "slerp", "ties"],
        default="linear",
        help="the weighted mean (default); along the arc between two models; or what several learnt beyond a base, without "
        "what contradicts",
    )
    parser.add_argument(
        "--weights", type=_weights, metavar="W,W,…", help="how much each model counts (default: all the same)"
    )
    parser.add_argument("--t", type=float, metavar="T", help="slerp: how far from the first to the second (0.5)")
    parser.add_argument("--base", metavar="MODEL", help="ties: the folder of the model that all others began with")
    parser.add_argument(
        "--density", type=float, metavar="SHARE", help="ties: of each model's differences, the largest (0.2)"
    )
    parser.add_argument(
        "--scale", type=float, metavar="FACTOR", help="ties: of the differences that are added to the base (1)"
    )
    parser.add_argument(
        "--dtype", choices=["bf16", "fp32"], default="bf16", help="of the numbers: rounded to bf16 (default), or fp32"
    )


def run(args: argparse.Namespace) -> int:
    """Merge, and print a summary."""
    from peer.formatting import amount, size
    from peer.weights.folders import MergeOptions, merge

    models, folder = [Path(model).absolute() for model in args.models], Path(args.folder).absolute()
    base = None if args.base is None else Path(args.base).absolute()
    options = MergeOptions(args.rule, args.weights, args.t, base, args.density, args.scale)
    done = merge(models, folder, options, args.dtype, _show if sys.stderr.isatty() else _ignore)
    print(f"rule        {args.rule}")
    print(f"models      {len(models)}{' and their base' * (base is not None)}")
    print(f"parameters  {done.parameters} ({amount(done.parameters)}), {args.dtype}")
    print(f"folder      {folder} ({size(done.size_bytes)})")
    if not done.tokenizer:
        print("The folder has no tokenizer, as the model whose configuration it has.")
    return ExitCode.OK


def _show(share: float) -> None:
    print(f"\rmerging {100 * share:3.0f} %", end="\n" if share == 1 else "", file=sys.stderr, flush=True)


def _ignore(share: float) -> None:
    pass


def _weights(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no list of weights; give numbers with commas between them") from error
