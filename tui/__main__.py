"""`python -m tui FOLDER`: the terminal interface of the peer with this data directory."""

from __future__ import annotations

import sys
from pathlib import Path

from tui.app import PeerView
from tui.feed import Feed


def main() -> int:
    """Show the peer until the person closes the view."""
    if len(sys.argv) != 2:
        print("usage: python -m tui FOLDER; `peer watch` finds the folder by itself", file=sys.stderr)
        return 2
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    view = PeerView(Feed(Path(sys.argv[1])), unicode=unicode)
    view.run()
    return view.return_code or 0


if __name__ == "__main__":
    sys.exit(main())
