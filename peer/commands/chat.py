"""`peer chat`: talk to the newest state of a run, or to an exported model, in the terminal."""

from __future__ import annotations

import argparse
import io
import os
import sys

from peer.commands import Subparsers, add_command, option, whole_number


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "chat",
        "talk to the newest state of a run, or to an exported model",
        run,
        epilog="In a terminal, /help lists the commands of the conversation.  Text from a pipe gets one answer: "
        "`echo text | peer chat FOLDER`.",
    )
    option(
        parser,
        "model MODEL",
        "a run ID or its beginning for its newest state on this computer, or a folder with a model, as `peer export` "
        "or transformers write it (default: the running run, else the latest one here)",
        nargs="?",
    )
    option(parser, "--temp X", "temperature (default: 0.7; 0: the most probable tokens)", type=_temperature, default=0.7)
    option(
        parser,
        "--max-tokens N",
        "tokens of an answer; at most half of what the model reads (default: 512)",
        type=whole_number(1, 1 << 16),
        default=512,
    )
    option(parser, "--device NAME", "cpu, cuda, … (default: a GPU if there is one and no peer trains here)", default="auto")
    option(parser, "--json", "one JSON object for the answer to a text from a pipe")


def run(args: argparse.Namespace) -> int:
    """Talk, or answer the text of a pipe."""
    # Before torch is loaded: OpenMP's idle threads sleep, instead of keeping a core busy that a trainer could use.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from peer.chat.model import ChatSource
    from peer.chat.terminal import ChatSession, ChatTerminal, answer_once, read_text
    from peer.console.streams import share_reporter
    from peer.errors import ExitCode, PeerError

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
