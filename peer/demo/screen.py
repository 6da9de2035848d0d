"""The demo on the terminal: a line a peer with what it does now, redrawn; or what is new, where that cannot be."""

from __future__ import annotations

import shutil
import sys
from typing import Self

from peer.console.standard_streams import draws
from peer.demo.member import Member
from peer.demo.swarm import Demo
from peer.drawing import bar, fit
from peer.formatting import clean


class Screen:
    """Shows a demo's progress on standard error, so that standard output is the summary's.  quiet: shows nothing."""

    def __init__(self, demo: Demo, *, quiet: bool) -> None:
        self._demo, self._quiet = demo, quiet
        self._redraws = draws(sys.stderr)
        self._unicode = can_draw(sys.stderr.encoding)
        self._drawn = 0
        self._told = 0

    def __enter__(self) -> Self:
        if not self._quiet:
            print(f"{self._demo.play.aim.title()}; Ctrl-C ends it and cleans up.", file=sys.stderr, flush=True)
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
        news = self._demo.play.aim.news
        for line in news[self._told :]:
            print(line, file=sys.stderr, flush=True)
        self._told = len(news)

    def _width(self) -> int:
        return shutil.get_terminal_size((80, 24)).columns

    def _draw_over(self, lines: list[str]) -> None:
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        sys.stderr.write(up + "".join(f"\r\x1b[K{line}\n" for line in lines))
        sys.stderr.flush()
        self._drawn = len(lines)


def can_draw(encoding: str | None) -> bool:
    """Whether a stream of this encoding shows blocks."""
    return (encoding or "").lower().replace("-", "") == "utf8"


def progress_lines(demo: Demo, width: int, *, unicode: bool) -> list[str]:
    """One line for the swarm, one for each peer."""
    aim = demo.play.aim
    lines = [aim.headline(demo.seconds, unicode=unicode)]
    lines += [member_line(member, aim.remark(member.name), unicode=unicode) for member in demo.members]
    return [fit(line, width - 1) for line in lines]


def member_line(member: Member, remark: str, *, unicode: bool) -> str:
    """What one peer does now, and what there is to say about it."""
    status, shown = member.progress.status, member.progress.bar
    said = f"{remark}  " if remark else ""
    if shown is not None:
        drawn = bar(shown.done, shown.total, 12, unicode=unicode)
        return f"  {member.name}  {said}{shown.what} {drawn} {shown.done}/{shown.total}  {shown.detail}"
    if status is None:
        return f"  {member.name}  {said}starting"
    why = clean(status.why_detail or status.why_idle, 120)
    return f"  {member.name}  {said}{status.phase}" + (f": {why}" if why else "")
