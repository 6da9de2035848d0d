"""`python -m tui FOLDER [WORD …]`: the terminal interface of the peer with this data directory.

With arguments, it first starts that peer itself, by `peer` and the words (`tui.own_peer`).  `python -m tui --replay FILE …`
shows a recorded event log instead; its files are given oldest first.  `python -m tui --child-of PID FOLDER` ends with its
parent, a server that shows the view in a browser.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path

from peer.errors import ExitCode
from tui.own_peer import OwnPeer

PARENT_S = 1.0
"""Seconds between two looks for the parent."""


def main() -> int:
    """Show the peer until the person closes the view, or until the peer that was started here has ended."""
    if len(sys.argv) < 2:
        print("usage: python -m tui FOLDER; `peer watch` finds the folder by itself", file=sys.stderr)
        return 2
    if sys.argv[1] == "--replay":
        return replay([Path(name) for name in sys.argv[2:]])
    if sys.argv[1] == "--child-of":
        threading.Thread(target=end_with, args=(int(sys.argv[2]),), daemon=True).start()
        del sys.argv[1:3]
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    own = OwnPeer(words) if words else None  # before the slow imports, so that the peer starts at the same time

    from peer.paths import data_dir
    from tui.app import PeerApp
    from tui.feed import Feed

    feed = Feed(folder, is_starting=own is not None)
    view = PeerApp(feed, own, unicode=has_unicode(), theme=theme_here())
    gc.freeze()  # a garbage collection over the imported modules would delay a key by 50 ms
    view.run()
    if own is None:
        return view.return_code or 0
    ending = own.ending()
    if ending is None:
        where = "" if folder == data_dir(None) else f" --data-dir {folder}"
        begun = "is leaving" if own.leaving else "keeps running"
        print(f"The peer {begun} in the background: `peer watch{where}` shows it, `peer leave{where}` stops it.")
        return 0
    if ending.words:
        print(ending.words, file=sys.stderr)
    elif view.left:
        print(f"{view.left[:1].upper()}{view.left[1:]}; the same command continues from there.")
    return ending.code


def end_with(parent: int) -> None:
    """Wait for the end of the process that started this one, which may be killed, and end this one at once."""
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    os._exit(0)  # nobody reads what the interface would write at its end


def replay(paths: list[Path]) -> int:
    """Show a recording until the person closes it."""
    from tui.player import EventFile, NoEvents, Player
    from tui.replay import ReplayView

    try:
        file = EventFile(paths)
    except NoEvents as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.INPUT
    view = ReplayView(Player(file), unicode=has_unicode(), theme=theme_here())
    view.run()
    return view.return_code or 0


def theme_here() -> str:
    """Return the name of the theme for this terminal."""
    from rich.console import Console

    from tui.theme import suited_theme

    return suited_theme(os.environ.get("COLORFGBG", ""), Console().color_system)


def has_unicode() -> bool:
    """Return True if the terminal can draw more than ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


if __name__ == "__main__":
    sys.exit(main())
