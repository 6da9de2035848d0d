"""`peer weights`: the blobs here or on their way, the versions of the weights, and publishing one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.commands import add_command
from peer.console.asking import ask, show
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.commands import Subparsers

PUBLISH_TIMEOUT_S = 3600.0
BAR_CELLS = 64


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "weights",
        "show what is here of the weights and on its way, or publish a version",
        run,
        epilog="Every peer of the run takes each version that its publishers sign.  The files are the run's own.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    group = parser.add_subparsers(title="commands", metavar="COMMAND")
    publish = add_command(
        group,
        "publish",
        "sign a file of weights as the next version, for all peers of the run",
        run_publish,
        epilog="The peer has to run, and be the run's organiser or named in its publishers.",
    )
    publish.add_argument(
        "source", metavar="FILE", help="a safetensors file in bf16, or a folder with some, as `peer export` writes it"
    )
    publish.add_argument(
        "--anchor-every",
        type=_anchors,
        default=10,
        metavar="K",
        help="each Kth version is to be had whole, the others as patches (1 to 64; default: 10)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the running peer's blobs and versions; exit code 5 when no peer runs here."""
    return show(args, "weights", describe)


def run_publish(args: argparse.Namespace) -> int:
    """Check the file, hand it to the running peer, and print the new version."""
    from peer.formatting import size
    from peer.joining.run_source import chosen_run
    from peer.paths import data_dir
    from peer.weights.publish import prepared

    folder, running = data_dir(args.data_dir), ask(args, "weights")["run"]
    source = Path(args.source).absolute()
    if not source.exists():
        raise PeerError(f"there is no {source}; give a safetensors file, or a folder with some", ExitCode.INPUT)
    with prepared(chosen_run(running, folder), source, folder) as name:
        done = ask(args, "publish-weights", timeout_s=PUBLISH_TIMEOUT_S, file=name, anchor_every=args.anchor_every)
    print(f"version     {done['version']}")
    print(f"whole       {size(done['size_bytes'])}{'' if done['kind'] == 'anchor' else ', to be had by patches'}")
    print(f"patch       {size(done['patch_bytes']) if done['patch_bytes'] is not None else '-'}")
    print(f"weights     {done['weights']}")
    return ExitCode.OK


def describe(status: dict[str, Any]) -> list[str]:
    """Return the versions as lines for a person, newest first."""
    from peer.formatting import clean, short, size
    from peer.sentences import chunk_map, coming
    from protocol.events.events import TransferProgress

    newest = f"version {status['newest']}" if status["newest"] is not None else "no version yet"
    lines = [
        f"run     {status['run']}",
        f"here    {newest}, {size(status['disk_bytes'])} in {clean(status['folder'], 500)}",
    ]
    for each in status["coming"]:
        lines += [f"coming  {coming(TransferProgress(**each))}", f"        {chunk_map(each['chunks'], BAR_CELLS)}"]
    lines += _served(status["blobs"])
    if status["versions"]:
        lines.append(f"{'VERSION':>8}  {'KIND':<7}{'WHOLE':>10}{'PATCH':>10}  {'PUBLISHER':<10}STATE")
    for each in reversed(status["versions"]):
        patch = size(each["patch_bytes"]) if each["patch_bytes"] is not None else "-"
        lines.append(
            f"{each['version']:>8}  {each['kind']:<7}{size(each['size_bytes']):>10}{patch:>10}  "
            f"{short(each['publisher']):<10}{_state(each)}"
        )
    return lines


def _state(version: dict[str, Any]) -> str:
    if version["refused"]:
        return f"not used: {version['refused']}"
    return "here" if version["here"] else "its patch is here" if version["patch_here"] else "not here"


def _served(blobs: list[dict[str, Any]]) -> list[str]:
    """Return a line for the checkpoints, and one for the results, that other peers can fetch from here."""
    from peer.formatting import size

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


def _anchors(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text} is no count; give a whole number from 1 to 64")
    return int(text)
