"""The table of connections between kinds of homes, as root: `python -m tests.routers`.

--kinds cone upnp ...   only these (reachable, cone, symmetric, double, firewall, upnp, ipv6)
--meet SECONDS          how long they have after all have come in
--push SECONDS          how long each then pushes bytes to the other, at least; 0: not at all
--line MBIT             what each home's line carries in each direction; without this no line is limited
--json                  for programs
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.routers.homes import why_not
from tests.routers.rates import PUSH_S
from tests.routers.router import Kind
from tests.routers.table import MEET_S, as_fields, measure, shown


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.routers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=[kind.value for kind in Kind], default=[kind.value for kind in Kind])
    parser.add_argument("--meet", type=float, default=MEET_S)
    parser.add_argument("--push", type=float, default=PUSH_S)
    parser.add_argument("--line", type=float)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"there can be no homes behind routers here: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        kinds = [Kind(name) for name in arguments.kinds]
        line = 1e6 * arguments.line if arguments.line is not None else None
        told = partial(print, file=sys.stderr, flush=True)
        meetings = measure(Path(folder), kinds, arguments.meet, arguments.push, line, told)
    print(json.dumps(as_fields(meetings)) if arguments.json else shown(meetings))


if __name__ == "__main__":
    main()
