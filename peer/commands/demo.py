"""`peer demo`: a whole swarm on this computer, which shows that everything works."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from peer.commands import Subparsers, add_command, option, whole_number
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.demo.swarm import Play

MAX_PEERS = 32
PEERS, ROUNDS = 3, 8
RL_ROUNDS = 16
"""Default of --rl: a copy of `peer.demo.swarm.LEAST_VERSIONS`, so that `peer --help` need not import that module."""
CHEATS = ("rollout", "validator")


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(subparsers, "demo", "train with several peers on this computer, as a test", run)
    option(parser, "--rl", "learn from rollouts: a trainer, two rollout peers, a validator")
    option(parser, "--cheat", "with --rl: a rollout peer that cheats, or a second validator that lies", choices=CHEATS)
    option(parser, "--peers N", f"number of peers (default: {PEERS}); not with --rl", type=whole_number(1, 1 << 20))
    option(
        parser,
        "--rounds R",
        f"number of rounds (default: {ROUNDS}); with --rl, number of rounds that learn from rollouts (default: "
        f"{RL_ROUNDS}, the least with which the reward rises)",
        type=whole_number(1, 1 << 20),
    )
    option(parser, "--json", "print one JSON object at the end, and nothing else")
    option(parser, "--keep", "keep the peers' directories, and say where they are")
    option(parser, "--run RUN.toml", "run file with another model or recipe than the demo's", dest="run_file", type=Path)


def run(args: argparse.Namespace) -> int:
    """Start the peers, watch them, let them leave and sum up; exit code 1 if a peer or a check of the demo failed."""
    import signal
    import sys

    from peer.console.streams import print_json
    from peer.demo.swarm import Demo, Screen, can_draw

    play = _play(args)
    signal.signal(signal.SIGTERM, _interrupt)  # so that SIGTERM cleans up like Ctrl-C
    signal.signal(signal.SIGHUP, _interrupt)
    with Demo(play, keep=args.keep) as demo, Screen(demo, quiet=args.json) as screen:
        demo.start()
        examination = play.examine(demo.folder) if play.examine is not None else None

        def on_tick() -> None:
            screen.draw()
            if examination is not None:
                examination.look()

        demo.watch(on_tick)
        seconds = demo.seconds
        demo.leave()
        if examination is not None:
            examination.conclude()
    if args.json:
        print_json(play.aim.fields(seconds))
    else:
        print("\n".join(play.aim.lines(seconds, unicode=can_draw(sys.stdout.encoding))))
    if args.keep and not args.json:
        print(f"The peers' directories are in {demo.folder}.")
    if fault := play.aim.fault():
        raise PeerError(fault)
    return ExitCode.OK


def _play(args: argparse.Namespace) -> Play:
    from peer.demo.cast import Cheat
    from peer.demo.swarm import learning_play, training_play

    if not args.rl:
        if args.cheat is not None:
            raise PeerError("--cheat needs rollouts; add --rl", ExitCode.USAGE)
        peers = args.peers or PEERS
        if peers > MAX_PEERS:
            raise PeerError(f"{peers} peers do not fit on one computer; at most {MAX_PEERS}", ExitCode.USAGE)
        return training_play(peers, args.rounds or ROUNDS, args.run_file)
    if args.peers is not None:
        raise PeerError("--rl chooses its own peers; remove --peers", ExitCode.USAGE)
    return learning_play(args.rounds, Cheat(args.cheat) if args.cheat else None, args.run_file)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
