"""What somebody gets who installs the wheel, and what its page on an index shows."""

from __future__ import annotations

import re
from email.message import Message
from email.parser import Parser
from zipfile import ZipFile

import pytest

from peer.installation import ROOMS
from tests.wheel import ROOT, build

PACKAGES = {"peer", *ROOMS}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    return ZipFile(build(tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def metadata(wheel: ZipFile) -> Message:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


@pytest.mark.slow
def test_the_wheel_has_our_packages_whole_and_nothing_else(wheel: ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in names} == PACKAGES
    sources = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources


@pytest.mark.slow
def test_the_wheel_has_the_files_that_code_reads(wheel: ZipFile) -> None:
    assert {"peer/corpora/builtin.jsonl.gz", "peer/demo/learning.toml", "peer/page/page.css", "peer/page/page.html"} <= set(
        wheel.namelist()
    )


def test_every_package_says_that_it_is_typed(wheel: ZipFile) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


def test_the_page_on_an_index_leads_somewhere(metadata: Message) -> None:
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Issues", "Source"} <= set(urls)
    assert all(url.startswith(urls["Homepage"]) and url.startswith("https://") for url in urls.values())
    text = str(metadata.get_payload())
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets and all(target.startswith("https://") for target in targets), "relative links lead nowhere on an index"
    files = [target.partition("/blob/main/")[2] for target in targets if target.startswith(urls["Homepage"])]
    assert files and all((ROOT / file).is_file() for file in files)
