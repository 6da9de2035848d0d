"""Every bad input gives its sentence, with file and row, and leaves nothing behind."""

from __future__ import annotations

import bz2
import errno
import gzip
import importlib
import json
import os
import random
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from peer.corpora import compressed
from peer.corpora import readers as readings
from peer.corpora.build import PARTIAL, build
from peer.corpora.forms import FolderTraits
from peer.corpora.inputs import BuildInput, Document, InputFile
from peer.corpora.options import BuildOptions, FieldSelection, LeftOut, TokenFormat
from peer.errors import ExitCode, PeerError
from protocol.corpora.manifest import CorpusKind
from tests.peer.corpora.makers import jsonl, texts_of, write_rows

GOOD = [{"id": number, "text": f"good {number}"} for number in range(4)]
TEXT, IDS = FieldSelection(), FieldSelection(identity="id")


def alone(**options: Any) -> BuildOptions:
    """Options of a build without other processes."""
    return BuildOptions(**options, workers=1)


ALL = alone(held_out_percent=0, bad_percent=99)


BAD_ROWS: dict[str, tuple[str, bytes, FieldSelection, LeftOut, str]] = {
    "broken JSON": ("a.jsonl", b'{"text": \n', TEXT, LeftOut.JSON, "it is not JSON (Expecting value at column 10)"),
    "deep nesting": ("a.jsonl", b"[" * 10**6 + b"\n", TEXT, LeftOut.JSON, "it is nested too deeply"),
    "a long number": ("a.jsonl", b'{"text": 1' + b"0" * 5000 + b"}\n", TEXT, LeftOut.JSON, "a number with too many digits"),
    "a missing field": ("a.jsonl", b'{"body": "x"}\n', TEXT, LeftOut.FIELD, "it has no field text, but body; name one"),
    "another encoding": ("a.jsonl", b'{"text": "\xe4"}\n', TEXT, LeftOut.UTF8, "not UTF-8 text at byte 11"),
    "half a character": ("a.jsonl", b'{"text": "\\ud800"}\n', TEXT, LeftOut.UTF8, "half of a surrogate pair"),
    "a file in Latin-1": ("a.txt", b"\xe4", TEXT, LeftOut.UTF8, "not UTF-8 text at byte 1; save it as UTF-8"),
    "a field twice": ("a.jsonl", b'{"text": "x", "text": "y"}\n', TEXT, LeftOut.JSON, "the field 'text' appears twice"),
    "no zstd": ("a.jsonl.zst", b"\x28\xb5\x2f\xfd" + b"\xff" * 30, TEXT, LeftOut.BROKEN, "the .zst file is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_row_is_named_and_fatal_only_above_its_share(case: str, tmp_path: Path) -> None:
    name, data, fields, reason, flaw = BAD_ROWS[case]
    path, out = tmp_path / name, tmp_path / "out"
    path.write_bytes(data)
    inputs = [BuildInput("s", write_rows(tmp_path / "good.jsonl", GOOD)), BuildInput("s", path)]
    with pytest.raises(PeerError) as error:
        build(inputs, alone(fields=fields, held_out_percent=0), out)
    assert f"1 of 5 rows are bad, more than 1 %; the first is {name}, row 1: " in error.value.text
    assert flaw in error.value.text
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "good.jsonl"])
    result = build(inputs, alone(fields=fields, held_out_percent=0, bad_percent=99.99), out)
    assert result.tally.left_out == {reason: 1}
    assert sorted(texts_of(out)["s", "train"]) == [row["text"] for row in GOOD]


LINES = jsonl({"text": random.Random(number).randbytes(99).hex()} for number in range(400))
CUT: dict[str, tuple[str, bytes, str]] = {
    "gzip": ("a.jsonl.gz", gzip.compress(LINES), "the .gz file is cut short"),
    "bzip2": ("a.jsonl.bz2", bz2.compress(LINES), "the .bz2 file is cut short"),
    "zstd": ("a.jsonl.zst", zstandard.compress(LINES), "the .zst file is cut short"),
    "an array": ("a.json", b"[" + LINES.strip().replace(b"\n", b",") + b"]", "its JSON array breaks off"),
    "Parquet": ("a.parquet", b"", "it is not a readable Parquet file"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CUT)
def test_file_that_was_cut_stops_the_build_because_nobody_knows_what_is_lost(case: str, tmp_path: Path) -> None:
    name, data, flaw = CUT[case]
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / name
    data = data or write_rows(path, [{"text": str(number)} for number in range(400)]).read_bytes()
    path.write_bytes(data[: len(data) // 5])
    write_rows(tmp_path / "in" / "good.jsonl", [{"text": f"good {number}"} for number in range(1000)])
    inputs = [BuildInput("s", tmp_path / "in")]
    with pytest.raises(PeerError, match=f"an unknown share of {name} is lost: {flaw}.*; copy it again; or leave"):
        build(inputs, alone(held_out_percent=0), tmp_path / "out")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in"]
    build(inputs, alone(held_out_percent=0, fields=FieldSelection(leave_out=(name,))), tmp_path / "without")
    tally = build(inputs, alone(held_out_percent=0, bad_percent=99), tmp_path / "with").tally
    assert tally.left_out[LeftOut.BROKEN] == 1
    assert tally.documents >= 1000 + (case == "gzip"), "the rows before the end are read"


SKIPPED: dict[str, tuple[str, bytes, LeftOut, str]] = {
    "an empty file": ("a.txt", b" \n", LeftOut.EMPTY, "it is empty"),
    "an empty text": ("a.jsonl", b'{"text": ""}\n', LeftOut.EMPTY, "it is empty"),
    "a text with an end token": ("a.jsonl", b'{"text": "a\\u0000b"}\n', LeftOut.MARKED, "contains a token that ends a turn"),
    "a text that is there": ("a.txt", b"good 1", LeftOut.SAME_TEXT, "it has the text of an earlier row"),
}  # fmt: skip


@pytest.mark.parametrize("case", SKIPPED)
def test_row_without_use_is_left_out_and_named(case: str, tmp_path: Path) -> None:
    name, data, reason, flaw = SKIPPED[case]
    (tmp_path / name).write_bytes(data)
    inputs = [BuildInput("s", write_rows(tmp_path / "good.jsonl", GOOD)), BuildInput("s", tmp_path / name)]
    result = build(inputs, alone(held_out_percent=0), tmp_path / "out")
    assert result.tally.left_out == {reason: 1} and result.tally.bad == 0
    assert flaw in str(result.tally.first(False))


REMEDIES: dict[str, tuple[str, bytes, str]] = {
    "an open quote": ("a.csv", b'text\n"c\n' + b"d\n" * 59, "end of data, after 60 lines); correct its quotes, or allow"),
    "chats": ("a.jsonl", b'{"messages": []}\n', "but messages; build it with --kind chat, or allow more with --bad"),
    "a field": ("a.jsonl", b'{"body": "x"}\n', "but body; name one with --text, or allow more with --bad"),
}  # fmt: skip


@pytest.mark.parametrize("case", REMEDIES)
def test_sentence_on_bad_rows_ends_with_what_helps_them(case: str, tmp_path: Path) -> None:
    name, data, said = REMEDIES[case]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(PeerError) as error:
        build([BuildInput("s", tmp_path / name)], alone(), tmp_path / "out")
    assert said in error.value.text and error.value.text.endswith("or allow more with --bad")
    assert error.value.text.count("; ") <= 2, error.value.text


def test_equal_ids_are_bad_rows(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [*GOOD, {"id": 2, "text": "another"}])
    with pytest.raises(PeerError, match=r"1 of 5 rows are bad.*a.jsonl, row 5: it has the ID of an earlier row"):
        build([BuildInput("s", path)], alone(fields=IDS), tmp_path / "out")
    assert not (tmp_path / f"out{PARTIAL}").exists()
    result = build([BuildInput("s", path)], alone(fields=IDS, held_out_percent=0, bad_percent=50), tmp_path / "out")
    assert result.tally.left_out == {LeftOut.SAME_ID: 1} and "another" not in texts_of(tmp_path / "out")["s", "train"]


def test_row_over_the_limit_is_passed_over_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "MAX_LINE_BYTES", 1000)
    rows = [*GOOD[:2], {"id": 9, "text": "x" * 1001}, *GOOD[2:]]
    monkeypatch.setitem(sys.modules, "datasets", stand_in(rows, []))
    origins: list[Path | str] = [*(write_rows(tmp_path / name, rows) for name in ("a.jsonl", "a.parquet")), "hf:o/n"]
    for number, origin in enumerate(origins):
        result = build([BuildInput("s", origin)], ALL, tmp_path / str(number))
        assert result.tally.left_out == {LeftOut.LONG: 1} and result.tally.documents == len(GOOD)
        assert "row 3: it has more than 0 MiB; split it" in str(result.tally.first(True))


def rows_of(path: Path, kind: CorpusKind) -> list[tuple[Any, Any, int]]:
    file = InputFile(0, BuildInput("s", path), 0, path, path.name)
    options = BuildOptions(TokenFormat(kind, row_tokens=0 if kind is CorpusKind.TEXT else 9))
    return [*readings._contents(file, options, FolderTraits(), lambda read: None)]


@pytest.mark.slow
def test_row_of_a_parquet_that_grows_as_a_record_is_left_out(tmp_path: Path) -> None:
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    text = arrow.DictionaryArray.from_arrays(arrow.array([0] * 3000, arrow.int32()), arrow.array(["x" * 10**6]))
    places = arrow.array([0, 3000], arrow.int32())
    nulls = arrow.ListArray.from_arrays(arrow.array([0, 17 << 20], arrow.int32()), arrow.nulls(17 << 20))
    for name, rows in (("repeated", arrow.ListArray.from_arrays(places, text)), ("nulls", nulls)):
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(arrow.table({"text": rows}), path, compression="zstd")
        assert path.stat().st_size < 4096
        ((_, flaw, _),) = rows_of(path, CorpusKind.TEXT)
        assert flaw == "it has more than 128 MiB; split it"
    table = arrow.table({"text": ["a"], "chat": [[{"role": "user", "tags": ["b", None]}]], "map": [{"a": 1}]})
    parquet.write_table(table, tmp_path / "plain.parquet")
    ((_, record, _),) = rows_of(tmp_path / "plain.parquet", CorpusKind.CHAT)
    assert record["text"] == "a" and record["chat"] == [{"role": "user", "tags": ["b", None]}]


def test_document_over_the_limit_is_a_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("readers", "documents"):
        monkeypatch.setattr(f"peer.corpora.{module}.MAX_DOCUMENT_BYTES", 1000)
    (tmp_path / "a.txt").write_text("x" * 1001)
    write_rows(tmp_path / "b.jsonl", [*GOOD, {"text": "ü" * 501}])
    inputs = [BuildInput("s", tmp_path / name) for name in ("a.txt", "b.jsonl")]
    result = build(inputs, ALL, tmp_path / "out")
    assert result.tally.left_out == {LeftOut.LONG: 2}


def test_filters_take_rows_by_length_and_fields(tmp_path: Path) -> None:
    rows = [
        {"text": "english text", "meta": {"lang": "en"}, "stars": 3},
        {"text": "deutscher Text", "meta": {"lang": "de"}, "stars": 3},
        {"text": "no", "meta": {"lang": "en"}, "stars": 3},
        {"text": "some other text", "meta": {"lang": "en"}, "stars": 4},
        {"text": "without fields"},
        {"text": "a text of too many characters", "meta": {"lang": "en"}, "stars": 3},
    ]
    fields = FieldSelection(least=5, most=20, where={"meta.lang": ("en", "fr"), "stars": ("3",)})
    for ending in ("jsonl", "parquet"):
        path, out = write_rows(tmp_path / f"a.{ending}", rows), tmp_path / ending
        result = build([BuildInput("s", path)], alone(fields=fields, held_out_percent=0), out)
        assert texts_of(out)["s", "train"] == ["english text"]
        assert result.tally.left_out == {LeftOut.FILTERED: 5}


def test_only_the_first_rows_of_each_input_are_read(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write_rows(tmp_path / "in" / name, [{"text": f"{name} {number}"} for number in range(3)])
    inputs = [BuildInput("s", tmp_path / "in"), BuildInput("t", tmp_path / "in" / "b.jsonl")]
    build(inputs, alone(fields=FieldSelection(most_rows=4), held_out_percent=0), tmp_path / "out")
    found = texts_of(tmp_path / "out")
    assert sorted(found["s", "train"]) == ["a.jsonl 0", "a.jsonl 1", "a.jsonl 2", "b.jsonl 0"]
    assert sorted(found["t", "train"]) == [f"b.jsonl {number}" for number in range(3)]


ONE = [Document(text="x")]
REFUSED: dict[str, tuple[list[BuildInput], FieldSelection, str]] = {
    "a device": ([BuildInput("s", Path("/dev/null"))], TEXT, "/dev/null is neither a file nor a folder"),
    "no row": ([BuildInput("s", [])], TEXT, "the source s has no document to learn from; its inputs have no rows"),
    "seventeen sources": (
        [BuildInput(f"s{number}", ONE) for number in range(17)],
        TEXT,
        "a corpus has 1 to 16 sources, and these inputs have 17; give several inputs one name",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_inputs_that_give_no_corpus_are_refused_and_leave_nothing(case: str, tmp_path: Path) -> None:
    inputs, fields, said = REFUSED[case]
    with pytest.raises(PeerError, match=said):
        build(inputs, alone(fields=fields), tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_deeply_nested_folders_are_read_and_links_in_circles_are_not(tmp_path: Path) -> None:
    folder = inner = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("some text")
    (folder / "loop").symlink_to("loop")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "pipe.txt")
    for _ in range(1100):
        inner /= "d"
        inner.mkdir()
    (inner / "b.txt").write_text("other text")
    assert build([BuildInput("s", folder)], ALL, tmp_path / "out").tally.rows == 2
    (inner / "b.txt").unlink()
    os.removedirs(inner)  # a folder nested so deeply is more than other tools can remove


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("notes.txt", "../secret"),
        ("id_rsa", ".ssh/id_rsa"),
        ("snapshots/main/notes.txt", "../../../secret"),
    ],
)
def test_links_out_of_an_input_folder_are_left_out_by_name(name: str, target: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / ".ssh").mkdir(parents=True)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / "inner").mkdir(exist_ok=True)
    (folder / "inner" / "up").symlink_to("../..")
    for secret in (tmp_path / "secret", folder / ".ssh" / "id_rsa"):
        secret.write_text("THE-SECRET")
    (folder / "a.txt").write_text("some text")
    (folder / "b.txt").symlink_to("a.txt")
    (folder / name).symlink_to(target)
    tally = build([BuildInput("s", folder)], ALL, tmp_path / "out").tally
    assert tally.left_out == {LeftOut.BROKEN: 1, LeftOut.SAME_TEXT: 1}
    said = str(tally.first(True))
    assert name in said and "it is a link that leads out of the folder; put the file itself into the folder" in said
    assert texts_of(tmp_path / "out")["s", "train"] == ["some text"]


@pytest.mark.parametrize("out", ["in/below/out", "link/out"])
def test_build_into_an_input_folder_is_refused(out: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.jsonl", GOOD)
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(PeerError, match="out lies in .*/in, so files of the build would be read as documents; choose"):
        build([BuildInput("s", tmp_path / "in")], alone(), tmp_path / out)
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["a.jsonl"]


def stand_in(records: list[Any], calls: list[Any]) -> types.ModuleType:
    module = types.ModuleType("datasets")

    def load_dataset(path: str, name: str | None, *, split: str, streaming: bool) -> Iterator[Any]:
        calls.append((path, name, split, streaming))
        return iter(records)

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    return module


def test_data_set_of_hugging_face_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "datasets", stand_in(GOOD, calls))
    inputs = [BuildInput("s", "hf:owner/name:config@test"), BuildInput("t", "hf:owner/name")]
    build(inputs, alone(held_out_percent=0), tmp_path / "out")
    assert calls == [("owner/name", "config", "test", True), ("owner/name", None, "train", True)]
    found = texts_of(tmp_path / "out")
    assert sorted(found["s", "train"]) == sorted(found["t", "train"]) == [row["text"] for row in GOOD]


def test_lost_connection_to_a_data_set_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = stand_in([], [])
    monkeypatch.setitem(sys.modules, "datasets", module)

    def breaking(*args: Any, **options: Any) -> Iterator[Any]:
        yield from GOOD
        raise ConnectionError("the server went away\nwith details")

    monkeypatch.setattr(module, "load_dataset", breaking)
    with pytest.raises(PeerError, match="cannot read hf:o/n: the server went away; check the name") as error:
        build([BuildInput("s", "hf:o/n")], alone(), tmp_path / "out")
    assert error.value.exit_code is ExitCode.UNREACHABLE
    assert (tmp_path / f"out{PARTIAL}" / "journal").exists() and not (tmp_path / "out").exists()


def test_read_error_of_an_input_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lines = write_rows(tmp_path / "a.jsonl", GOOD), compressed.lines_of

    def failing(*words: Any) -> Iterator[bytes | int]:
        yield from lines(*words)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(readings, "lines_of", failing)
        with pytest.raises(PeerError, match="cannot read .*a.jsonl: Input/output error; check .*run the command again"):
            build([BuildInput("s", path)], ALL, tmp_path / "out")
    assert (tmp_path / f"out{PARTIAL}" / "journal").exists()
    build([BuildInput("s", path)], ALL, tmp_path / "out")
    assert len(texts_of(tmp_path / "out")["s", "train"]) == len(GOOD)


@pytest.mark.parametrize(
    ("origin", "module", "said"),
    [
        ("a.parquet", "pyarrow.parquet", r"needs pyarrow to be read; run .* install 'pyarrow>="),
        ("hf:o/n", "datasets", r"needs the library datasets; run .* install 'datasets>="),
    ],
)
def test_input_without_the_library_that_reads_it_names_the_remedy(
    origin: str, module: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(tmp_path / "a.parquet", [{"text": "x"}])
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PeerError, match=said):
        build([BuildInput("s", path if origin == path.name else origin)], alone(), tmp_path / "out")


def test_recipe_names_inputs_and_counts_without_folders(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [*GOOD, {"text": ""}])
    recipe = build([BuildInput("s", path)], alone(), tmp_path / "out").manifest.recipe
    said = json.loads(recipe)
    assert said["inputs"] == [{"source": "s", "input": "a.jsonl"}]
    assert said["left_out"] == {"empty": 1} and said["rows"] == 5
    assert str(tmp_path) not in recipe
