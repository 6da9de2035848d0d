"""Run as another user, with a Python that this user can read: attacks under that user's own protections.

    python as_another.py ROOM LEFT_OUT…

Prints a JSON object: what the user has, and for each attack how it ended.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

import attacks  # type: ignore[import-not-found]  # a copy of ours, beside this file's copy

from trainer.environments.confinement import Mechanism
from trainer.environments.sandbox import Limits, Sandbox, protections

ATTACKS = "LOOP SLEEP FORK_BOMB THREAD_BOMB ALLOCATE SHOUT SILENT OUTLIVE EXECUTE CRASH FILL_DISK".split()


def main() -> None:
    tempfile.tempdir = sys.argv[1]
    limits = Limits(cpu_s=1, wall_s=3.0, memory_bytes=256 << 20, output_bytes=64 << 10)
    made = Sandbox(limits, mechanisms=set(Mechanism) - {Mechanism(name) for name in sys.argv[2:]})
    secret = os.path.join(sys.argv[1], "secret")
    with open(secret, "w") as file:
        file.write("nobody's business")
    programs = {name: getattr(attacks, name) for name in ATTACKS}
    programs["READ"] = attacks.READ_OUTSIDE.format(path=secret)
    programs["WRITE"] = attacks.WRITE_OUTSIDE.format(path=secret)
    programs["KILL"] = attacks.KILL_PARENT.format(pid=os.getpid())
    programs["VARIABLES"] = attacks.READ_PARENTS_VARIABLES
    ended = {name: made.run(text) for name, text in programs.items()}
    with open(secret) as file:
        kept = file.read()
    os.unlink(secret)
    told = {
        "mechanisms": sorted(protections().mechanisms),
        "verdicts": {name: outcome.verdict for name, outcome in ended.items()},
        "succeeded": sorted(name for name, outcome in ended.items() if outcome.succeeded),
        "said": {name: outcome.output[:1000].decode(errors="replace") for name, outcome in ended.items()},
        "well": made.run("import sys; print(sys.stdin.read())", b"well").output.decode(),
        "kept": kept,
        "left": os.listdir(sys.argv[1]),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
