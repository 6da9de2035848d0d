"""Panel of transfers: rates up and down, and each blob being fetched, with the map of its chunks."""

from __future__ import annotations

from rich.text import Text

from peer.formatting import blocks_by_origin, chunk_map, copies, fit, sparkline
from protocol.events.events import blob_name
from protocol.formatting import duration, size
from tui.panels.drawing import FAINT, GOOD, Look, line, paragraph
from tui.picture import Picture

TITLE = "Transfers"
TEXT = 34


def draw(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw two lines of rates and one of blocks by origin, then two for each blob that comes, then the ended transfers."""
    status = picture.status
    if status is None:
        return []
    lines = [
        _rate("up", [up for up, _ in picture.rates], status.up_bytes, width, look),
        _rate("down", [down for _, down in picture.rates], status.down_bytes, width, look),
    ]
    if status.block_bytes:
        lines += paragraph(f"Data read: {blocks_by_origin(status.block_bytes)}", width)
    if status.copies is not None:
        lines += paragraph(f"Copies of the data: {copies(status.copies)}", width)
    blobs = list[Text]()
    for told in reversed(picture.coming.values()):
        cells = chunk_map(told.chunks, width)
        drawn = cells.replace("#", "█").replace("+", "▒").replace(".", "░") if look.unicode else cells
        blobs += [*paragraph(told.progress(), width), line((drawn, GOOD))]
    for ended in reversed(picture.ended):
        word = "fetched" if ended.complete else "gave up"
        text = f"{word} {blob_name(ended.what, ended.number)}: {size(ended.fetched_bytes)} in {duration(ended.seconds)}"
        blobs += paragraph(text, width, FAINT)
    if not blobs:
        blobs.append(line((fit("nothing is being fetched", width), FAINT)))
    shown = look.window(len(blobs), height - len(lines))
    return [*lines, *(blobs[place] for place in shown)]


def _rate(way: str, rates: list[float], total: int, width: int, look: Look) -> Text:
    now = rates[-1] if rates else 0.0
    text = f"{way:<5}{size(now) + '/s':<13}{size(total) + ' so far':<16}"
    return line(fit(text, width), (sparkline(rates, width - TEXT, unicode=look.unicode), GOOD))
