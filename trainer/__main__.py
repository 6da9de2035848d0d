"""Entry point of the trainer process: `python -m trainer --fd N --theta-fd M --contribution-fd K`.

The peer starts it with three inherited file descriptors: a socket for commands, shared memory with the swarm's
parameters, and shared memory for the contribution. A trainer of several ranks starts the others itself, with `--rank`.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

NICENESS = 5
"""Niceness of the trainer; the peer process has priority, because it must answer other peers in time."""
OOM_SCORE_ADJUSTMENT = "500"


def main() -> int:
    """Serve the peer process over the descriptors named in the command line."""
    parser = argparse.ArgumentParser(prog="trainer", description="Trains for a peer; started by it, not by hand.")
    parser.add_argument("--fd", type=int, required=True, help="socket for commands")
    parser.add_argument("--theta-fd", type=int, required=True, help="shared memory with the parameters")
    parser.add_argument("--contribution-fd", type=int, required=True, help="shared memory for the contribution")
    parser.add_argument("--rank", action="store_true", help="be a rank that another trainer process has started")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal also reaches us, but the peer decides
    if arguments.rank:
        from trainer.rank_work import serve

        return serve(arguments.fd, arguments.theta_fd, arguments.contribution_fd)
    os.nice(NICENESS)
    with suppress(OSError):  # not Linux, or not allowed
        # if memory runs out, the kernel ends the trainer, which has nothing to save, before the peer
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJUSTMENT)
    connection = socket.socket(fileno=arguments.fd)
    from trainer.service.service import Service  # after the signal is set: importing torch takes seconds

    return Service(connection, arguments.theta_fd, arguments.contribution_fd).run()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # torch's threads may still be busy; we have nothing to save
