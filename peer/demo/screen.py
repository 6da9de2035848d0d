"""The demo on the terminal: a line a peer with what it does now, redrawn; or a line a round where that cannot be."""

from __future__ import annotations

import shutil
import sys
from typing import Self

from peer.console.standard_streams import draws
from peer.demo.swarm import Demo, Member, Summary
from peer.drawing import bar, fit
from peer.formatting import clean, duration, number


class Screen:
    """Shows a demo's progress on standard error, so that standard output is the summary's.  quiet: shows nothing."""

    def __init__(self, demo: Demo, *, quiet: bool) -> None:
        self._demo, self._quiet = demo, quiet
        self._redraws = draws(sys.stderr)
        self._unicode = (sys.stderr.encoding or "").lower().replace("-", "") == "utf8"
        self._drawn = 0
        self._told = -1

    def __enter__(self) -> Self:
        if not self._quiet:
            demo = self._demo
            print(
                f"{demo.peers} peers, {demo.rounds} rounds, {demo.signed.manifest.parameters} parameters; "
                "Ctrl-C ends it and cleans up.",
                file=sys.stderr,
                flush=True,
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._drawn:
            self._draw_over(progress_lines(self._demo, self._width(), unicode=self._unicode))

    def draw(self) -> None:
        """Show the progress as it is now."""
        if self._quiet:
            return
        if self._redraws:
            self._draw_over(progress_lines(self._demo, self._width(), unicode=self._unicode))
            return
        committed = min(member.committed for member in self._demo.members)
        if committed > self._told:
            self._told = committed
            print(progress_lines(self._demo, 200, unicode=self._unicode)[0], file=sys.stderr, flush=True)

    def _width(self) -> int:
        return shutil.get_terminal_size((80, 24)).columns

    def _draw_over(self, lines: list[str]) -> None:
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        sys.stderr.write(up + "".join(f"\r\x1b[K{line}\n" for line in lines))
        sys.stderr.flush()
        self._drawn = len(lines)


def progress_lines(demo: Demo, width: int, *, unicode: bool) -> list[str]:
    """One line for the swarm, one for each peer."""
    committed = min((member.committed for member in demo.members), default=0)
    losses = [(rounds, loss) for member in demo.members for rounds, loss in member.evals.items()]
    held_out = f"held-out loss {number(max(losses)[1])} after {max(losses)[0]}" if losses else "no loss yet"
    drawn = bar(committed, demo.rounds, 20, unicode=unicode)
    lines = [f"round {committed} of {demo.rounds} {drawn} {held_out}, {duration(demo.seconds)}"]
    lines += [member_line(member, unicode=unicode) for member in demo.members]
    return [fit(line, width - 1) for line in lines]


def member_line(member: Member, *, unicode: bool) -> str:
    """What one peer does now."""
    status, shown = member.progress.status, member.progress.bar
    if shown is not None:
        drawn = bar(shown.done, shown.total, 12, unicode=unicode)
        return f"  {member.name}  {shown.what} {drawn} {shown.done}/{shown.total}  {shown.detail}"
    if status is None:
        return f"  {member.name}  starting"
    why = clean(status.why_detail or status.why_idle, 120)
    return f"  {member.name}  {status.phase}" + (f": {why}" if why else "")


def summary_lines(summary: Summary, demo: Demo) -> list[str]:
    """The result for a person."""
    wire = summary.wire_bytes_per_param_round
    return [
        f"{summary.rounds} rounds committed by {summary.peers} peers in {duration(summary.seconds)}",
        f"held-out loss   {number(summary.eval_loss_start)} at the start, {number(summary.eval_loss_end)} at the end",
        f"exchanged       {number(wire)} bytes sent by each peer, per parameter and round",
        *(
            f"state digest    {member.name}  {digest[:32] or 'none'}"
            for member, digest in zip(demo.members, summary.state_digests.values(), strict=True)
        ),
        f"all digests are {'equal' if summary.equal else 'NOT EQUAL'}",
    ]
