"""What the page tells, whoever chose the names; its size for a large run; its files."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from peer.control.curves import MOST_SAMPLED
from peer.control.history import RunHistory
from peer.page import facts as page_facts
from peer.page.document import document
from peer.page.facts import PageFacts, gather, own_invitation
from peer.page.writer import Written, write_page
from protocol.chain.credit import Credit
from protocol.run.invitation import make_invitation, read_invitation
from tests.hostile_texts import EACH_HOSTILE, HARMFUL
from tests.peer.page.crowds import (
    ORGANISER,
    PEERS,
    ROUNDS,
    SIGNED,
    history,
    hostile,
    peer_id,
    status,
    swarm_peer,
)
from tests.protocol.chains import FIVE, a_replica, a_run, grow

NOW = 1_796_000_000.0


def told(folder: Path, rounds: int = 40, peers: int = 4, **changes: Any) -> PageFacts:
    return gather(history(folder, rounds, peers, 10), status(peers, **changes), NOW)


class Reader(HTMLParser):
    """Elements, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


# -- the facts ------------------------------------------------------------------------------------------------------------


def test_the_page_and_the_json_file_tell_the_same_facts(tmp_path: Path) -> None:
    facts = told(tmp_path)
    fields, page = json.loads(json.dumps(facts, allow_nan=False)), Reader(document(facts, "run.json"))
    assert fields["run"]["rounds"] == 40 and fields["run"]["id"] in page.text
    assert fields["peers_here"] == 4 and fields["contributor_count"] == 4
    for each in [*fields["peers"], *fields["contributors"]]:
        assert each["name"] in page.text and each["peer"][-6:] in page.text
    assert fields["invitation"] and f"peer join {fields['invitation']}" in page.text
    assert f"{fields['curves']['held_out'][-1]['loss']:.3f}" in page.text
    assert all(fields["run"][key] in page.text for key in ("name", "description", "licence", "url", "model", "data"))
    assert ("a", "run.json") in [(tag, attributes.get("href")) for tag, attributes in page.elements]


def test_a_page_tells_no_address_and_no_activity_of_a_peer(tmp_path: Path) -> None:
    facts = told(tmp_path)
    for text in (document(facts, "run.json"), json.dumps(facts)):
        assert "198.51.100." not in text and "computing" not in text and "direct" not in text


def test_a_run_with_rollouts_shows_rewards_and_who_made_what_was_learned_from(tmp_path: Path) -> None:
    known = history(tmp_path, 40, 4)
    known.rounds = [replace(each, reward=min(0.9, each.rounds / 40)) for each in known.rounds]
    credits = known.ledger.credits
    credits[peer_id(7)] = Credit(0, 0, 12, 34_500)
    page = Reader(document(gather(known, status(2), NOW), "run.json"))
    assert "Reward of the rollouts" in page.text and "Tokens of rollouts" in page.text and "34.5 k" in page.text
    assert page.text.index("Reward of the rollouts") < page.text.index("nats a token"), "what the run learns comes first"
    assert "Tokens of rollouts" not in document(told(tmp_path / "text"), "run.json")


def test_rollouts_count_for_the_share_of_whoever_made_them(tmp_path: Path) -> None:
    known = history(tmp_path, 40, 4)
    trained = sum(each.tokens for each in known.ledger.credits.values())
    known.ledger.credits[peer_id(7)] = Credit(0, 0, 12, trained)
    first, *others = gather(known, status(2), NOW)["contributors"]
    assert (first["peer"], first["share"]) == (peer_id(7), 0.5)
    assert sum(each["share"] for each in others) == pytest.approx(0.5)


def test_the_page_tells_what_its_peer_audited_and_credits(tmp_path: Path) -> None:
    known = history(tmp_path, 40, 4)
    liar = replace(swarm_peer(3), audits=1, audited_tokens=900, set_aside="false receipts", aside_until=60)
    facts = gather(known, status(4, swarm=[liar]), NOW)
    claimed = {each["peer"]: each["tokens"] for each in facts["contributors"]}
    credited = {each["peer"]: each["credited_tokens"] for each in facts["contributors"]}
    assert credited == {**claimed, peer_id(3): 0} and facts["audited_tokens"] == 900
    assert "this peer audited 900 of the tokens, and credits" in Reader(document(facts, "run.json")).text


def test_teams_have_the_credit_of_their_members_also_of_those_that_are_gone(tmp_path: Path) -> None:
    known = history(tmp_path, 40, 4)
    known.teams = {peer_id(1): "owls", peer_id(2): "owls", peer_id(3): "bats"}
    swarm = [replace(swarm_peer(3), team="owls"), replace(swarm_peer(9), team="cats")]
    facts = gather(known, status(2, swarm=swarm), NOW)
    owls = [each for each in facts["contributors"] if each["team"] == "owls"]
    (told,) = facts["teams"]
    assert {each["peer"] for each in owls} == {peer_id(1), peer_id(2), peer_id(3)}, "the last has changed its team"
    assert (told["team"], told["peers"], facts["team_count"]) == ("owls", 3, 1)
    assert told["tokens"] == sum(each["tokens"] for each in owls)
    page = Reader(document(facts, "run.json"))
    assert "Teams" in page.text and "owls" in page.text and "cats" not in page.text, "cats have no credit"
    known.teams = {}
    assert "Teams" not in document(gather(known, None, NOW), "run.json")


def test_peers_that_are_gone_are_not_here(tmp_path: Path) -> None:
    swarm = [
        replace(swarm_peer(number), liveness=state) for number, state in enumerate(("alive", "gone", "left", "unproven"), 1)
    ]
    facts = told(tmp_path, swarm=swarm)
    assert [each["peer"] for each in facts["peers"]] == [peer_id(1), peer_id(0)]


def test_without_a_running_peer_the_page_tells_what_is_on_disk(tmp_path: Path) -> None:
    facts = gather(history(tmp_path, 40, 4), None, NOW)
    page = Reader(document(facts, "run.json"))
    assert (facts["peers_here"], facts["peers"], facts["invitation"]) == (None, [], "")
    assert "Here now" not in page.text and "Ask the organiser for an invitation" in page.text and "Contributors" in page.text


# -- the invitation -------------------------------------------------------------------------------------------------------


def named(*addresses: str) -> list[str]:
    invitation = own_invitation(status(2, invitation=make_invitation(SIGNED.run, ORGANISER.peer_id, list(addresses))))
    return list(read_invitation(invitation).addresses) if invitation else []


def test_the_invitation_names_no_other_peer_and_no_local_address_beside_a_public_one() -> None:
    me, other = peer_id(0), peer_id(9)
    public, local = f"/ip4/203.0.113.7/tcp/4001/p2p/{me}", f"/ip4/192.168.1.5/tcp/4001/p2p/{me}"
    theirs, relayed = (
        f"/ip4/198.51.100.9/tcp/4001/p2p/{other}",
        f"/ip4/198.51.100.9/tcp/4001/p2p/{other}/p2p-circuit/p2p/{me}",
    )
    assert named(public, local, theirs, relayed) == [public]
    assert named(local, theirs) == [local]
    assert named(theirs, relayed) == []
    assert own_invitation(status(2, invitation="")) == "" == own_invitation(status(2, invitation="mh1nonsense"))


# -- hostile texts --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH_HOSTILE)
def test_a_hostile_name_is_harmless_text(tmp_path: Path, name: str) -> None:
    facts = gather(*hostile(tmp_path, name), NOW)
    page, calm = document(facts, "run.json"), document(told(tmp_path / "calm"), "run.json")
    assert {tag for tag, _ in Reader(page).elements} <= {tag for tag, _ in Reader(calm).elements}
    for _, attributes in Reader(page).elements:
        assert not any(attribute.startswith("on") or attribute in ("src", "style") for attribute in attributes)
    assert not HARMFUL.search(page) and len(page.encode()) < 200_000
    assert not HARMFUL.search(json.dumps(facts, ensure_ascii=False))


def test_the_policy_allows_the_style_sheet_of_the_page_and_nothing_else(tmp_path: Path) -> None:
    page = document(told(tmp_path), "run.json")
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    policy = next(
        attributes["content"]
        for tag, attributes in Reader(page).elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    assert "url(" not in style and "@import" not in style


def test_a_page_leads_to_the_program_to_the_home_page_of_the_run_and_to_its_json_file_alone(tmp_path: Path) -> None:
    elements = Reader(document(told(tmp_path), "run.json")).elements
    links = [attributes["href"] for tag, attributes in elements if "href" in attributes]
    assert [link for link in links if link and not link.startswith("data:")] == [
        "https://github.com/manyhands/manyhands#install",
        "https://library.example/model",
        "run.json",
    ]
    assert not {tag for tag, _ in elements} & {"script", "img", "iframe", "object", "embed", "base", "form"}


def test_numbers_that_are_not_finite_are_not_told(tmp_path: Path) -> None:
    known = history(tmp_path, 40, 4)
    known.rounds[5] = replace(known.rounds[5], loss=float("nan"))
    swarm = [replace(swarm_peer(1), tokens_per_s=float("inf"))]
    facts = gather(known, status(2, swarm=swarm, goal_left_s=float("inf")), NOW)
    json.dumps(facts, allow_nan=False)
    assert not re.search(r"\b(nan|inf)\b", Reader(document(facts, "run.json")).text)


# -- size -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_of_200_peers_and_10_000_rounds_takes_less_than_a_megabyte(tmp_path: Path) -> None:
    facts = gather(history(tmp_path), status(), NOW)
    page, fields = document(facts, "run.json"), json.dumps(facts, indent=1)
    assert facts["run"]["rounds"] == ROUNDS and len(facts["peers"]) == len(facts["contributors"]) == PEERS
    assert len(facts["samples"]) <= MOST_SAMPLED
    assert len(facts["curves"]["loss"]) <= page_facts.MOST_POINTS and facts["curves"]["loss"][-1]["rounds"] == ROUNDS
    assert len(page.encode()) < 400_000 and len(fields) < 400_000


# -- the files ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a run of five rounds."""
    folder = tmp_path_factory.mktemp("data")
    run = a_run(FIVE[0])
    replica = a_replica(run, folder / "runs" / run.run.hex())
    grow(replica, 5, [FIVE[0]])
    replica.state.close()
    return folder


def written(data: Path, folder: Path) -> Written:
    run = a_run(FIVE[0])
    known = RunHistory(run, data / "runs" / run.run.hex())
    known.read()
    return write_page(known, None, folder)


def test_the_files_can_be_read_by_a_web_server_and_replace_the_earlier_ones(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "www" / "run"
    (tmp_path / "www").mkdir()
    found = written(data, folder)
    assert found.rounds == 5 and found.path == folder / "index.html"
    for path in (folder / "index.html", folder / "run.json"):
        assert path.stat().st_mode & 0o777 == 0o644
    (folder / "index.html").write_text("old")
    (folder / ".index.html.killed.new").write_text("half")
    (folder / ".theirs.new").write_text("a file of somebody else")
    written(data, folder)
    assert (folder / "index.html").read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in folder.iterdir()) == [".theirs.new", "index.html", "run.json"]
    fields = json.loads((folder / "run.json").read_text())
    assert fields["run"]["rounds"] == 5 and [point["rounds"] for point in fields["curves"]["loss"]] == [1, 2, 3, 4, 5]
