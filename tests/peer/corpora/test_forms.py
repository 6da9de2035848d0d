"""The content of a file tells its form, and what carries most of an input is read, or the build stops and names it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard

from peer.corpora import compressed, readers
from peer.corpora.build import build
from peer.corpora.compressed import BrokenFile, elements_of
from peer.corpora.documents import text_of_page
from peer.corpora.forms import Form, Skipped, form_of
from peer.corpora.inputs import BuildInput
from peer.corpora.options import BuildOptions, FieldSelection, LeftOut, TokenFormat
from peer.errors import PeerError
from protocol.corpora.manifest import CorpusKind
from tests.peer.corpora.makers import jsonl, texts_of
from tests.tiers import crossed

ROWS = [{"text": f"row {number}, of many", "id": number} for number in range(9)]
WANTED = sorted(str(row["text"]) for row in ROWS)
TABLE = pyarrow.Table.from_pylist(ROWS)


def options(bad: float = 1, **fields: Any) -> BuildOptions:
    return BuildOptions(fields=FieldSelection(**fields), held_out_percent=0, bad_percent=bad, workers=1)


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def parquet() -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(TABLE, sink)
    return sink.getvalue()


def arrow(make: Callable[..., Any]) -> bytes:
    sink = io.BytesIO()
    with make(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=4)
    return sink.getvalue()


def delimited(delimiter: str) -> bytes:
    lines = [f'{row["id"]}{delimiter}"{row["text"]}"' for row in ROWS]
    return "\r\n".join([f"id{delimiter}text", *lines, ""]).encode()


READ: dict[str, tuple[bytes, Form]] = {
    "array.json": (json.dumps(ROWS, indent=2).encode(), Form.ARRAY),
    "lines.txt": (b"\n" + jsonl(ROWS), Form.LINES),
    "a.jsonl.xz": (lzma.compress(jsonl(ROWS[:4])) + lzma.compress(jsonl(ROWS[4:])), Form.LINES),
    "a.jsonl.bz2": (bz2.compress(jsonl(ROWS[:4])) + bz2.compress(jsonl(ROWS[4:])), Form.LINES),
    "frames.jsonl.zst": (zstandard.compress(jsonl(ROWS[:4])) + zstandard.compress(jsonl(ROWS[4:])), Form.LINES),
    "a.csv": (delimited(","), Form.TABLE),
    "semicolons.csv": (b"\xef\xbb\xbf" + delimited(";"), Form.TABLE),
    "a.parquet": (parquet(), Form.PARQUET),
    "data-00000-of-00001.arrow": (arrow(pyarrow.ipc.new_stream), Form.ARROW),
    "file.arrow": (arrow(pyarrow.ipc.new_file), Form.ARROW),
}


@pytest.mark.parametrize("is_in_folder", [True, False], ids=["in a folder", "named"])
@pytest.mark.parametrize("name", READ)
def test_records_are_read_in_the_form_of_their_content(name: str, is_in_folder: bool, tmp_path: Path) -> None:
    content, form = READ[name]
    path = written(tmp_path / "in" / name, content)
    result = build([BuildInput("s", path.parent if is_in_folder else path)], options(), tmp_path / "out")
    assert sorted(texts_of(tmp_path / "out")["s", "train"]) == WANTED
    assert result.survey.read == {form: 1} and not result.survey.skipped
    assert json.loads(result.manifest.recipe)["forms"] == {form.name.lower(): 1}


FORMS: dict[str, tuple[bytes, Form | Skipped]] = {
    "page.html": (b"<!-- a --><!DOCTYPE html><p>x", Form.PAGE),
    "tsconfig.json": (b'// settings\n{"a": 1}', Form.TEXT),
    "package.json": (b'{\n "name": "x"\n}', Form.OBJECT),
    "a.bin": (b"ab\0cd", Skipped.BINARY),
    "letter.rtf": (b"{\\rtf1\\ansi Hello", Skipped.ARCHIVE),
    "pretty.txt": (b'{\n "text": "x"\n}\n{\n "text": "y"\n}\n', Form.OBJECT),
}


@pytest.mark.parametrize("name", FORMS)
def test_form_of_a_file_follows_from_its_beginning(name: str) -> None:
    content, form = FORMS[name]
    assert form_of(name, content, is_whole=True) is form


def archive(make: Callable[[io.BytesIO], Any]) -> bytes:
    sink = io.BytesIO()
    make(sink)
    return sink.getvalue()


def tar(sink: io.BytesIO) -> None:
    with tarfile.open(fileobj=sink, mode="w") as file:
        file.addfile(tarfile.TarInfo("a.jsonl"), io.BytesIO(b""))


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 99\n"
UNREAD: dict[str, tuple[bytes, str]] = {
    "shard-0000.tar": (archive(tar), "is an archive or an office document; unpack it"),
    "book.pdf": (b"%PDF-1.7 and more text", "is a PDF; convert it to text"),
    "tokens.npy": (
        b"\x93NUMPY" + bytes(99),
        "is an array of numbers; `peer data import OUT FILE --tokenizer FOLDER` reads tokens",
    ),
    "data.parquet": (POINTER, "is a pointer of Git LFS; fetch the file with `git lfs pull`"),
    "photo.jpg": (b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(99), "is binary, in no form that is read"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_unread_file_beside_a_readme_stops_the_build_and_is_named(name: str, tmp_path: Path) -> None:
    content, flaw = UNREAD[name]
    path = written(tmp_path / "in" / "en" / name, content)
    written(tmp_path / "in" / "README.md", b"a card")
    for origin, said in ((tmp_path / "in", f"en/{name}"), (path, name)):
        with pytest.raises(PeerError) as error:
            build([BuildInput("s", origin)], options(), tmp_path / "out")
        assert "would be passed over, more than 1 %" in error.value.text and f"{said} {flaw}" in error.value.text
        assert not (tmp_path / "out").exists()
    result = build([BuildInput("s", tmp_path / "in")], options(leave_out=("en",)), tmp_path / "out")
    assert result.survey.read == {Form.TEXT: 1} and {*result.survey.skipped} == {Skipped.LEFT_OUT}
    assert result.survey.skipped[Skipped.LEFT_OUT].names == ["en"]
    build([BuildInput("s", tmp_path / "in")], options(bad=99.99), tmp_path / "allowed")


@pytest.mark.parametrize(
    ("target", "part"),
    [("../more", "is a link to a folder elsewhere; name that folder"), ("nowhere", "is a link to nothing; fetch what")],
)
def test_link_whose_size_is_unknown_counts_as_half_of_the_input(target: str, part: str, tmp_path: Path) -> None:
    written(tmp_path / "in" / "a.jsonl", jsonl(ROWS))
    written(tmp_path / "more" / "b.jsonl", jsonl(ROWS))
    (tmp_path / "in" / "more").symlink_to(target)
    inputs = [BuildInput("s", tmp_path / "in")]
    with pytest.raises(PeerError, match=f"an unknown share of in would be passed over, .*: more {part}"):
        build(inputs, options(bad=49), tmp_path / "out")
    build(inputs, options(bad=51), tmp_path / "out")
    build(inputs, options(leave_out=("more",)), tmp_path / "other")


CARD = b"---\nlicense: mit\n---\n# Poems"
CLONES: dict[str, tuple[dict[str, bytes], set[str], dict[Skipped, int]]] = {
    "shards by split": (
        {"data/train-00000.jsonl": b"a", "data/test-00000.jsonl": b"b", "data/validation-00000.jsonl": b"c"},
        {"a"},
        {Skipped.OTHER_SPLIT: 2},
    ),
    "prose": (
        {"train.txt": b"a", "dev.txt": b"b", "crash-test.txt": b"c", "my train journey.txt": b"d", "test/b.txt": b"e"},
        {"a", "b", "c", "d", "e"},
        {},
    ),
    "prose beside the folder of a card": (
        {"clone/README.md": CARD, "clone/train.txt": b"a", "clone/x/test.txt": b"b", "mine/test.txt": b"c", "dev.txt": b"d"},
        {"a", "c", "d"},
        {Skipped.ABOUT: 1, Skipped.OTHER_SPLIT: 1},
    ),
    "the last word": ({"train/test.jsonl": b"a", "test/train.jsonl": b"b"}, {"b"}, {Skipped.OTHER_SPLIT: 1}),
    "code": ({"train.py": b"a", "test.py": b"b", "tests/test_a.py": b"c", "README.md": b"d"}, {"a", "b", "c", "d"}, {}),
    "texts with a card": (
        {"README.md": CARD, "LICENSE": b"d", "poems.txt": b"a"},
        {"a"},
        {Skipped.ABOUT: 2},
    ),
    "notes with front matter": ({"README.md": b"---\ntags: x\n---\n", "b.txt": b"b"}, {"---\ntags: x\n---\n", "b"}, {}),
}


@pytest.mark.parametrize("case", CLONES)
def test_other_splits_and_files_about_the_data_are_no_training_text(case: str, tmp_path: Path) -> None:
    files, wanted, skipped = CLONES[case]
    for name, letter in files.items():
        line = jsonl([{"text": letter.decode()}]) * 2 if ".json" in name and letter in b"abc" else letter
        written(tmp_path / "in" / name, gzip.compress(line) if name.endswith(".gz") else line)
    result = build([BuildInput("s", tmp_path / "in")], options(), tmp_path / "out")
    assert set(texts_of(tmp_path / "out")["s", "train"]) == wanted
    assert {reason: each.files for reason, each in result.survey.skipped.items()} == skipped


def test_folder_with_data_for_tests_alone_is_refused_and_a_named_file_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "in" / "test.jsonl", jsonl(ROWS))
    written(tmp_path / "in" / "more.jsonl", jsonl(ROWS[:1]))
    with pytest.raises(PeerError, match=r"of in would be passed over.*: test.jsonl is data for tests by its name"):
        build([BuildInput("s", tmp_path / "in")], options(), tmp_path / "out")
    build([BuildInput("s", path)], options(), tmp_path / "out")
    assert sorted(texts_of(tmp_path / "out")["s", "train"]) == WANTED


def test_settings_beside_code_are_texts_and_beside_records_they_stop_the_build(tmp_path: Path) -> None:
    settings, code = b'{\n "name": "x"\n}', b"import os, sys, re, io"
    written(tmp_path / "in" / "package.json", settings)
    written(tmp_path / "in" / "a.py", code)
    survey = build([BuildInput("s", tmp_path / "in")], options(), tmp_path / "code").survey
    assert set(texts_of(tmp_path / "code")["s", "train"]) == {settings.decode(), code.decode()}
    assert survey.read == {Form.SETTINGS: 1, Form.TEXT: 1}
    written(tmp_path / "in" / "a.jsonl", jsonl(ROWS))
    with pytest.raises(PeerError, match="package.json is no record with the field of the text"):
        build([BuildInput("s", tmp_path / "in")], options(), tmp_path / "out")
    result = build([BuildInput("s", tmp_path / "in")], options(read_as="text"), tmp_path / "out")
    assert result.survey.read == {Form.TEXT: 3}


def test_data_in_json_of_an_unknown_form_are_not_read_as_settings_because_code_lies_beside_them(tmp_path: Path) -> None:
    written(tmp_path / "in" / "README.md", b"a card")
    written(tmp_path / "in" / "load.py", b"import json")
    written(tmp_path / "in" / "squad.json", json.dumps({"data": [{"context": f"paragraph {i}"} for i in range(9)]}).encode())
    with pytest.raises(
        PeerError, match="of in would be passed over, .*: squad.json is no record with the field of the text"
    ):
        build([BuildInput("s", tmp_path / "in")], options(), tmp_path / "out")


def test_hidden_files_are_named_and_change_no_corpus(tmp_path: Path) -> None:
    written(tmp_path / "in" / "b" / "a.jsonl", jsonl(ROWS))
    plain = build([BuildInput("s", tmp_path / "in")], options(), tmp_path / "plain")
    written(tmp_path / "in" / ".git" / "pack", b"x")
    written(tmp_path / "in" / "b" / ".DS_Store", b"x")
    result = build([BuildInput("s", tmp_path / "in")], options(), tmp_path / "out")
    assert set(result.survey.skipped[Skipped.HIDDEN].names) == {".git", "b/.DS_Store"}
    assert result.manifest == plain.manifest and result.survey.fingerprint == plain.survey.fingerprint


def test_folder_of_chats_that_also_has_texts_is_refused_unless_they_are_about_it(tmp_path: Path) -> None:
    chats = [{"prompt": f"{number}?", "completion": "yes"} for number in range(9)]
    written(tmp_path / "in" / "a.csv", b"prompt,completion\n" + b"".join(b"%d?,yes\n" % number for number in range(9)))
    written(tmp_path / "in" / "b.json", json.dumps(chats).encode())
    written(tmp_path / "in" / "README.md", b"a card")
    form = TokenFormat(CorpusKind.CHAT, template="plain", row_tokens=65)
    wanted = BuildOptions(form, held_out_percent=0, workers=1)
    result = build([BuildInput("s", tmp_path / "in")], wanted, tmp_path / "out")
    assert result.survey.read == {Form.TABLE: 1, Form.ARRAY: 1} and result.tally.left_out == {LeftOut.SAME_TEXT: 9}
    written(tmp_path / "in" / "talk.txt", b"user: a?")
    with pytest.raises(PeerError, match="talk.txt is no file of records"):
        build([BuildInput("s", tmp_path / "in")], wanted, tmp_path / "other")


BAD_TABLES: dict[str, tuple[bytes, int, str]] = {
    "too many values": (b"id,text\n1,a,b\n2,b\n", 1, "it has 3 values, and the header 2"),
    "a text after a quote": (b'id,text\n1,"a"x\n2,b\n', 1, "it is not a row of a table"),
    "a column twice": (b"text,text\na,b\n", 0, "the column 'text' appears twice in its header"),
    "a long line": (b"id,text\n1," + b"a" * 2000 + b"\n2,b\n", 1, "it has more than 0 MiB"),
    "a long row of many lines": (b'id,text\n1,"' + b"a\n" * 900 + b'"\n2,b\n', 1, "it has more than 0 MiB"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_row_of_a_table_is_named_and_the_next_one_is_read(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(readers, "MAX_COLUMNS", 100)
    content, good, flaw = BAD_TABLES[case]
    written(tmp_path / "a.csv", content)
    inputs = [BuildInput("s", written(tmp_path / "good.jsonl", jsonl(ROWS))), BuildInput("s", tmp_path / "a.csv")]
    result = build(inputs, options(bad=99.9), tmp_path / "out")
    assert flaw in str(result.tally.first(True))
    assert result.tally.documents >= len(ROWS) + (good if "many lines" not in case else 0)
    with pytest.raises(PeerError, match="rows are bad"):
        build(inputs, options(), tmp_path / "other")


def test_values_of_a_table_may_hold_lines_quotes_and_delimiters(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", b'id;text;more\r\n1;"two\r\nlines; and ""quotes""";x\r\n\r\n2;plain, with comma;y')
    build([BuildInput("s", tmp_path / "a.csv")], options(), tmp_path / "out")
    assert set(texts_of(tmp_path / "out")["s", "train"]) == {'two\r\nlines; and "quotes"', "plain, with comma"}


ARRAYS = [
    [],
    [{}],
    [{"text": 'a "quote", a \\ and ]}'}],
    [{"text": "ü\n\t"}, {"a": [1, [2, {"b": "]"}]]}, "text", 5, None],
    [[1, 2], [{"text": "\\"}]],
    ["\\\\", '\\"', ""],
]


@pytest.mark.parametrize("value", ARRAYS, ids=json.dumps)
def test_elements_of_an_array_are_found_wherever_its_pieces_are_cut(value: list[Any]) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=1), json.dumps(value, ensure_ascii=False) + "\r\n"):
        data = b"\xef\xbb\xbf" + text.encode()
        for size in range(1, len(data) + 1):
            pieces = iter([data[start : start + size] for start in range(0, len(data), size)])
            assert [json.loads(each) for each in elements_of(pieces, 1000) if isinstance(each, bytes)] == value


@pytest.mark.parametrize("data", [b"[", b"[1", b'["a]', b"[[1]", b'["\\"]', b"[1] 2", b"[1]]", b"[1]\n[2]", b"[{}"])
def test_array_that_breaks_off_or_goes_on_is_broken(data: bytes) -> None:
    for size in range(1, len(data) + 1):
        with pytest.raises(BrokenFile):
            [*elements_of(iter([data[start : start + size] for start in range(0, len(data), size)]), 1000)]


def test_element_over_the_limit_has_only_its_size() -> None:
    pieces = iter([b'[{"a": "', *[b"x" * 100] * 20, b'"}, 5]'])
    assert [*elements_of(pieces, 1000)] == [2009, b" 5"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "start"), crossed(["zst", "xz", "bz2", "gz"], [b"", b"[", b'{"text": "', b'[{"text": "', b"id,text\n1,"])
)
def test_what_grows_by_decompression_is_never_in_memory_whole(ending: str, start: bytes, tmp_path: Path) -> None:
    compress = {"xz": lambda data: lzma.compress(data, preset=0), "bz2": bz2.compress, "gz": gzip.compress}
    data = compress.get(ending, zstandard.compress)(start + b" " * (24 << 20))
    suffix = "csv" if start.startswith(b"id") else "json"
    path = written(tmp_path / f"a.{suffix}.{ending}", data)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MAX_LINE_BYTES", "MAX_DOCUMENT_BYTES"):
            patch.setattr(readers, name, 1 << 20)
        patch.setattr(compressed, "COMPRESSED_BYTES", 64)  # of which each four may become 128 KiB
        tracemalloc.start()
        try:
            with pytest.raises(PeerError):
                build([BuildInput("s", path)], options(), tmp_path / "out")
            assert tracemalloc.get_traced_memory()[1] < 12 << 20
        finally:
            tracemalloc.stop()


def test_rest_of_a_file_that_breaks_off_counts_with_its_bytes(tmp_path: Path) -> None:
    rows = [{"text": np.random.default_rng(number).bytes(200).hex()} for number in range(2000)]
    damage = b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 200_000
    path = written(tmp_path / "a.jsonl.gz", gzip.compress(jsonl(rows)) + damage)
    with pytest.raises(PeerError, match=r"1 of \d+ rows are bad, with \d+.*, row \d+: the .gz file is damaged"):
        build([BuildInput("s", path)], options(), tmp_path / "out")


PAGES: dict[str, tuple[str, str]] = {
    "entities": ("<html><body><p>One &amp; two</p></body></html>", "One & two"),
    "blocks and lines": ("<h1>A</h1>\n<p>b\n  c</p><ul><li>d<li>e</ul>", "A\nb c\nd\ne"),
    "scripts and styles": ("<style>p{}</style><p>a</p><script>if (1 < 2) x('</p>')</script><p>b", "a\nb"),
    "a quoted bracket": ('<p title="a > b">c</p>', "c"),
    "a bare bracket": ("<p>1 < 2 and 3 > 2</p>", "1 < 2 and 3 > 2"),
    "preformatted lines": ("<pre>a\n  b</pre><p>c\nd</p>", "a\n  b\nc d"),
    "an open tag": ("<p>a</p><p class=", "a"),
}


@pytest.mark.parametrize("case", PAGES)
def test_text_of_a_page_is_what_stands_between_its_tags(case: str) -> None:
    page, text = PAGES[case]
    assert text_of_page(page) == text


@pytest.mark.parametrize("piece", ["<", "<!--", "<!-- -->", '<a "', "<p", "<script>", "</", "<![CDATA[", "&", '">'])
def test_text_of_a_page_takes_time_in_proportion_to_its_size(piece: str) -> None:
    """Count calls rather than seconds: each piece between two < is looked at once."""
    calls = 0

    class Counted(str):
        def partition(self, sep: str) -> tuple[str, str, str]:  # type: ignore[override]
            nonlocal calls
            calls += 1
            return super().partition(sep)

    class Page(str):
        def split(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:  # type: ignore[override]
            return [Counted(each) for each in super().split(sep)]

    text_of_page(Page(piece * 2000))
    assert calls <= 2 * 2000


@pytest.mark.parametrize("name", ["a.txt", "a.csv"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-32-be"])
def test_wide_characters_are_called_what_they_are(encoding: str, name: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, ("\ufeff" * encoding.endswith("be") + "text,b\nc,d\n").encode(encoding))
    with pytest.raises(PeerError, match=f"it is {encoding[:6].upper()} text; save it as UTF-8"):
        build([BuildInput("s", path)], options(), tmp_path / "out")
