"""`peer export`: a run's model as a Hugging Face folder."""

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
        "export",
        "write the model to a Hugging Face folder",
        run,
        epilog="Reads this computer's disk alone, whether the peer runs or not.  transformers loads the folder.",
    )
    parser.add_argument(
        "run_id",
        metavar="RUN",
        nargs="?",
        help="a run ID, also its beginning (default: the running one, else the latest here)",
    )
    parser.add_argument("folder", metavar="FOLDER", help="a new folder, which will have the model")
    parser.add_argument(
        "--checkpoint",
        type=_rounds,
        metavar="ROUNDS",
        help="the checkpoint after so many rounds (default: the newest state)",
    )
    parser.add_argument(
        "--dtype", choices=["bf16", "fp32"], default="bf16", help="of the numbers: rounded to bf16 (default), or exact"
    )


def run(args: argparse.Namespace) -> int:
    """Find the run, write its model, and say what was written."""
    from peer.formatting import amount, size
    from peer.joining.run_source import chosen_run
    from peer.paths import data_dir
    from peer.weights.folders import export

    data, folder = data_dir(args.data_dir), Path(args.folder).absolute()
    signed = chosen_run(args.run_id, data)
    done = export(signed, data, folder, args.dtype, args.checkpoint, _show if sys.stderr.isatty() else _ignore)
    print(f"run         {signed.run.hex()} ({signed.manifest.name})")
    print(f"rounds      {done.rounds}" + (", the final state of the run" if done.is_final else ""))
    print(f"parameters  {done.parameters} ({amount(done.parameters)}), {args.dtype}")
    print(f"folder      {folder} ({size(done.size_bytes)})")
    if not done.tokenizer:
        print(
            "The folder has no tokenizer: the run reads bytes, and a token's number is the byte's value."
            if signed.manifest.model.vocab == 256
            else "The folder has no tokenizer: this computer has none of the run's; copy it from the model it began with."
        )
    return ExitCode.OK


def _show(share: float) -> None:
    print(f"\rwriting {100 * share:3.0f} %", end="\n" if share == 1 else "", file=sys.stderr, flush=True)


def _ignore(share: float) -> None:
    pass


def _rounds(text: str) -> int:
    if not text.isdigit() or int(text) > 1 << 53:
        raise argparse.ArgumentTypeError(f"{text} is no count; give a whole number from 0")
    return int(text)
