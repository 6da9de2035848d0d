"""`peer simulate`: predict what a run would do with certain peers, before anybody joins."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from peer.commands import Subparsers, add_command, option
from peer.console.asking import print_result
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from protocol.run.manifest import RunManifest


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "simulate",
        "predict the speed and the traffic of a run, and propose its settings (for organisers)",
        run_simulate,
        epilog="A quantity is a value or a range LOW..HIGH, in which the peers are spread evenly by logarithm.  A TOML file "
        "has a section [[peers]] for each group of peers, with count and any of speed, up, down, rtt and online; the "
        "options apply to the other quantities.  Nothing is sent, and a run file's text is not read.",
        json=True,
    )
    option(parser, "what RUN", "a run file, a manifest or a run ID")
    option(parser, "--peers N", "number of peers, or a TOML file with groups (default: 8)", default="8")
    option(
        parser,
        "--speed TOKENS",
        "tokens a second of a trainer, as 5000 or 2000..20000 (default: as `peer bench` measured, else for 1 TFLOP/s, "
        "at most 50000)",
    )
    option(parser, "--up RATE", "upload of a peer, as 20mbit (default) or 5mbit..50mbit", default="20mbit")
    option(parser, "--down RATE", "download of a peer (default: 100mbit)", default="100mbit")
    option(parser, "--rtt TIME", "round-trip time between peers (default: 40ms)", default="40ms")
    option(
        parser,
        "--online TIMES",
        "mean times for which a peer is online and offline, as 8h/16h, or always (default)",
        default="always",
    )


def run_simulate(args: argparse.Namespace) -> int:
    """Predict, and print the table and the drawings."""
    import shutil
    import sys

    from peer.joining.run_word import check_word

    check_word(args.what, args.data_dir)  # before the slow imports

    from peer.demo.swarm import can_draw
    from peer.joining.purpose import assumed_by, assumed_rate
    from peer.planning.cost import RoundLoad, RoundRules, RoundSetting
    from peer.planning.model import NeverTogether, forecast_rounds
    from peer.planning.proposal import propose
    from peer.planning.report import NamedForecast, RunNeeds, drawing, end_line, fields, peers_line, remarks, table
    from peer.planning.swarm import LEAST_SPEED, PlannedPeers, read_groups
    from peer.resources.pace import kept_pace

    manifest = _manifest(args)
    if manifest.rl is not None:
        raise PeerError("only rounds of text can be predicted; give a run file without [rl]", ExitCode.INPUT)
    pace = kept_pace(args.data_dir)
    rate = pace.computed_per_s(manifest) if pace is not None else assumed_rate(manifest)
    speed = args.speed or f"{max(rate, LEAST_SPEED):.3f}"
    is_assumed = not args.speed and args.peers.isdigit()
    options = {"speed": speed, "up": args.up, "down": args.down, "rtt": args.rtt, "online": args.online}
    groups = read_groups(args.peers, options)
    peers, rules = PlannedPeers.of(groups), RoundRules.of(manifest)
    try:
        setting, why = propose(manifest, rules, peers)
        settings = {"run file": RoundSetting.of(manifest), "proposed": setting}
        if settings["run file"] == settings["proposed"]:
            settings = {"run file, as proposed": setting}
        forecasts = [
            NamedForecast.of(manifest, name, setting, forecast_rounds(RoundLoad.of(manifest, setting), rules, peers))
            for name, setting in settings.items()
        ]
    except NeverTogether as error:
        raise PeerError(f"{error}; describe more peers, or lower rounds.min_members", ExitCode.INPUT) from error
    needs = RunNeeds.of(manifest)
    source = (assumed_by(manifest) if pace is None else pace.of) if is_assumed else ""
    told = [*peers_line(groups, source), "", *table(forecasts, needs), ""]
    told += [f"The proposal: {why}.", *end_line(manifest, forecasts), *remarks(forecasts[-1], rules.max_members)]
    width, unicode = shutil.get_terminal_size((100, 24)).columns, can_draw(sys.stdout.encoding)
    for each in forecasts:
        told += ["", f"{each.name}:", *drawing(each.forecast.trace, width, unicode=unicode)]
    return print_result(args, fields(manifest, groups, forecasts, needs, why), told)


def _manifest(args: argparse.Namespace) -> RunManifest:
    """Return the manifest of the run.

    Text is read only if it may end the run; in chats and preferences, only some tokens count.
    """
    from peer.joining.run_source import named_run
    from peer.keyfile import load_or_create_identity
    from protocol.run.run_file import sections_of, sketch_run_file

    data = args.data_dir
    path = Path(args.what)
    sections = sections_of(path) if path.suffix == ".toml" else None
    data_section = sections.get("data", {}) if sections is not None else {}
    is_any_text = data_section.get("format", "text") == "text" and not data_section.get("epochs")  # all of its tokens count
    if sections is not None and is_any_text and "rl" not in sections and "from" not in sections.get("model", {}):
        return sketch_run_file(path, load_or_create_identity(data).peer_id)
    return named_run(args.what, data).manifest
