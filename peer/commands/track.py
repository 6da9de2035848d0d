"""`peer track`: the curves of a run in the trackers that organisers use."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from peer.commands import add_command
from peer.commands.stop import seconds_of
from peer.errors import ExitCode

if TYPE_CHECKING:
    from peer.commands import Subparsers


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "track",
        "write the run's curves for TensorBoard, Weights & Biases or MLflow",
        run,
        epilog="Reads the records and the event log on this disk.  It begins where each tracker ends, so it may be stopped, "
        "or killed, and started again; a peer that was joined with `--track TARGET` does it by itself.  TensorBoard and "
        "Weights & Biases are extras (docs/guides/install.md); keys come from the environment, as each package documents.",
    )
    parser.add_argument(
        "target", metavar="TARGET", nargs="+", help="tensorboard:FOLDER, wandb:PROJECT or mlflow:URI; several may be named"
    )
    parser.add_argument(
        "--run",
        dest="run_id",
        metavar="RUN",
        help="a run ID or its beginning (default: the running run, else the latest one here)",
    )
    parser.add_argument(
        "--every",
        metavar="TIME",
        type=seconds_of,
        help="go on, and look for new rounds with this time between: 60s, 5m (default: once)",
    )
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Write what is there, and what comes, until the command is interrupted."""
    import select
    import signal
    import sys

    from peer.control.history import RunHistory
    from peer.joining.run_source import chosen_run
    from peer.paths import run_dir
    from peer.tracking.points import points_due
    from peer.tracking.trackers import open_tracker
    from protocol.formatting import many

    data = args.data_dir
    signed = chosen_run(args.run_id, data)
    trackers = [(target, open_tracker(target, signed.run.hex(), signed.manifest.name)) for target in args.target]
    history = RunHistory(signed, run_dir(data, signed.run))
    written = {target: tracker.last() for target, tracker in trackers}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it closes the trackers like Ctrl-C
    try:
        while True:
            history.read()
            for target, tracker in trackers:
                due = points_due(history, written[target], is_end=args.every is None)
                if due:
                    tracker.write(due)
                    written[target] = due[-1].step
                    print(f"{target}: {many(len(due), 'round')} more, up to step {written[target]}", flush=True)
            if args.every is None:
                break
            if not args.until_eof:
                time.sleep(args.every)
            elif select.select([sys.stdin], [], [], args.every)[0]:
                break  # the peer that started us has ended
    except KeyboardInterrupt:
        pass
    finally:
        for _, tracker in trackers:
            tracker.close()
    return ExitCode.OK
