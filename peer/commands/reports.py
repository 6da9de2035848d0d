"""`peer page` and `peer track`: a run as a web page, and in the trackers that organisers use."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from peer.commands import Subparsers, add_command, add_run, option, seconds_of
from peer.errors import ExitCode


def register(subparsers: Subparsers) -> None:
    """Describe the command lines."""
    page = add_command(
        subparsers,
        "page",
        "write a web page about the run, to share",
        run_page,
        epilog="Writes `index.html`, which needs no script, no server and no other file, and `run.json` with the same "
        "facts.  Without a running peer it describes what is on this disk, without live peers and an invitation.  A peer "
        "that was joined with `--page FOLDER` keeps its page current by itself.",
    )
    option(page, "folder FOLDER", "where the page is written; a web server may serve it as it is")
    add_run(page)
    every = "write it repeatedly, with this time between: 60s, 5m (default: once)"
    option(page, "--every TIME", every, type=seconds_of)
    track = add_command(
        subparsers,
        "track",
        "write the run's curves for TensorBoard, Weights & Biases or MLflow",
        run_track,
        epilog="Reads the records and the event log on this disk.  It continues after the last round in each tracker, so it "
        "may be stopped, or killed, and started again; a peer that was joined with `--track TARGET` does it by itself.  "
        "TensorBoard and Weights & Biases are extras (docs/guides/install.md); keys come from the environment, as each "
        "package documents.",
    )
    targets = "tensorboard:FOLDER, wandb:PROJECT or mlflow:URI; several may be named"
    option(track, "target TARGET", targets, nargs="+")
    which = "a run ID or its beginning (default: the running run, else the latest one here)"
    option(track, "--run RUN", which, dest="run_id")
    every = "keep running, and look for new rounds with this time between: 60s, 5m (default: once)"
    option(track, "--every TIME", every, type=seconds_of)
    option(track, "--until-eof", argparse.SUPPRESS)


def run_page(args: argparse.Namespace) -> int:
    """Write the page once, or until the command is interrupted."""
    from peer.control.client import running_status
    from peer.control.history import RunHistory
    from peer.joining.run_source import chosen_run
    from peer.page.writer import FACTS, write_page
    from peer.paths import run_dir
    from protocol.formatting import clean, many, size, visible

    data = args.data_dir
    signed = chosen_run(args.run_id, data)
    history, folder = RunHistory(signed, run_dir(data, signed.run)), Path(os.path.expanduser(args.folder)).absolute()

    history.read()
    written = write_page(history, running_status(data, signed.run), folder)
    print(
        f"Wrote {written.path} and {FACTS} ({size(written.size_bytes)}): run {clean(written.name)}, "
        f"{many(written.rounds, 'round')}.",
        flush=True,
    )
    told = ""
    while args.every is not None:
        time.sleep(args.every)
        try:
            history.read()
            write_page(history, running_status(data, signed.run), folder)
            problem = ""
        except OSError as error:  # a full disk may have room again later
            problem = f"the page cannot be written: {error}; the command tries again"
        if problem and problem != told:
            print(f"peer: {visible(problem)}", file=sys.stderr, flush=True)
        told = problem
    return ExitCode.OK


def run_track(args: argparse.Namespace) -> int:
    """Write the rounds on disk once, or follow the run until the command is interrupted."""
    import select
    import signal

    from peer.control.history import RunHistory
    from peer.joining.run_source import chosen_run
    from peer.paths import run_dir
    from peer.tracking.trackers import open_tracker, points_due
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
