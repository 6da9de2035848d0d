"""The documents name files, modules and headings that exist, and stay short."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOMES = ("https://github.com/manyhands/manyhands/blob/main/", "https://raw.githubusercontent.com/manyhands/manyhands/main/")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
CURRENT = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]
"""Documents of the present; a change log names files of its time."""
FOLDERS = "benchmarks|docs|examples|kernels|peer|protocol|tests|trainer|tui"
MAX_PAGE_BYTES = 12_000
"""Size of a page of internals: ten minutes of reading."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """Return the text without its blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@cache
def modules() -> set[str]:
    """Return the names of all our Python files, without folders."""
    return {path.name for folder in FOLDERS.split("|") for path in (ROOT / folder).rglob("*.py")}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_each_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    for link in re.findall(r"\]\(([^()\s]+)\)", prose(path)):
        if home := next(filter(link.startswith, HOMES), ""):
            target, _, anchor = link.removeprefix(home).partition("#")
            there = ROOT / target
        elif re.match(r"[a-z]+:", link):
            continue
        else:
            target, _, anchor = link.partition("#")
            there = path.parent / target if target else path
        assert there.exists(), link
        assert not anchor or anchor in anchors(there), link


@pytest.mark.parametrize("path", CURRENT, ids=name)
def test_each_file_and_module_that_is_named_exists(path: Path) -> None:
    text = path.read_text()
    for named in re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", prose(path)):
        assert (ROOT / named).exists(), named
    for file in re.findall(r"`([\w]+\.py)`", prose(path)):
        assert file in modules(), file
    for dotted in re.findall(rf"python -m ((?:{FOLDERS})\.[\w.]+)", text):
        module = ROOT / dotted.rstrip(".").replace(".", "/")
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), dotted


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "internals").rglob("*.md")), ids=name)
def test_a_page_of_internals_is_short(path: Path) -> None:
    assert len(path.read_bytes()) < MAX_PAGE_BYTES, "cut it by topic"


def test_the_site_has_every_page() -> None:
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md"))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120
