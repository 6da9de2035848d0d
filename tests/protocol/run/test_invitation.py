"""One string, copied by hand and by mail."""

from __future__ import annotations

import base58
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.run.admission import bearer_token, bound_token, verify_admission
from protocol.run.invitation import Anchor, make_invitation, read_invitation
from protocol.run.invitation_text import MAX_BEGINNINGS, MAX_INVITATION_CHARACTERS, PREFIX, looks_like_invitation
from protocol.run.manifest import RunManifest, run_id
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_TOKEN_BYTES
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity

ONE = Identity.from_seed(bytes(32))
RUN = hash_bytes("manifest", b"run")
ADDRESS = f"/ip4/127.0.0.1/tcp/4001/p2p/{ONE.peer_id}"
ANCHOR = Anchor(rounds=7, tip=bytes(32))
GOOD = make_invitation(RUN, ONE.peer_id, [ADDRESS], b"token", bytes(31) + b"!", ANCHOR)


def test_round_trip() -> None:
    found = read_invitation(GOOD)
    assert (found.run, found.organiser, found.addresses, found.token) == (RUN, ONE.peer_id, [ADDRESS], b"token")
    assert found.anchor == ANCHOR
    assert found.secret == bytes(31) + b"!" and "!" not in repr(found)
    assert looks_like_invitation(GOOD) and not looks_like_invitation("run.toml")


def test_an_invitation_makes_the_proof_of_whoever_holds_it() -> None:
    key, guest = Identity.generate(), Identity.generate().peer_id
    manifest = RunManifest.model_validate(
        {"name": "run", "organiser": ONE.peer_id, "founders": "anyone", "admission": "invite", "total_rounds": 9}
    )
    run = run_id(manifest)
    bound = make_invitation(run, ONE.peer_id, [ADDRESS], bound_token(ONE, run, guest, expires=1))
    bearer = make_invitation(run, ONE.peer_id, [ADDRESS], bearer_token(ONE, run, key, expires=1), key.seed)
    for text in (bound, bearer):
        proof = read_invitation(text).proof_for(guest)
        verify_admission(manifest, run, guest, proof)
        assert key.seed not in proof
    for token in (None, b""):
        assert read_invitation(make_invitation(run, ONE.peer_id, [ADDRESS], token)).proof_for(guest) == b""


def test_the_largest_invitation_can_be_read() -> None:
    addresses = ["/" + "a" * 199] * 16
    assert (
        read_invitation(make_invitation(RUN, ONE.peer_id, addresses, bytes(MAX_TOKEN_BYTES), bytes(32))).addresses
        == addresses
    )


def test_the_beginning_of_one_is_taken_for_one_and_a_file_is_not() -> None:
    assert looks_like_invitation(GOOD[:30])
    assert not any(map(looks_like_invitation, ["mh1", "mh1.manifest", "mh1-first-run.manifest", "./" + GOOD]))


@settings(deadline=None)
@given(st.integers(3, len(GOOD) - 1), st.sampled_from("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"))
def test_a_mistyped_character_is_noticed(place: int, character: str) -> None:
    if GOOD[place] != character:
        with pytest.raises(Malformed, match="mistyped"):
            read_invitation(GOOD[:place] + character + GOOD[place + 1 :])


@settings(deadline=None)
@given(st.integers(0, len(GOOD) - 1))
def test_a_cut_invitation_is_noticed(length: int) -> None:
    for cut in (GOOD[:length], GOOD[len(GOOD) - length :]):
        with pytest.raises(Malformed):
            read_invitation(cut)


@pytest.mark.slow
@settings(deadline=None)
@given(st.text(max_size=200))
def test_random_text_is_malformed(text: str) -> None:
    for candidate in (text, "mh1" + text):
        with pytest.raises(Malformed):
            read_invitation(candidate)


def test_an_endless_text_is_refused_without_decoding() -> None:
    with pytest.raises(Malformed, match="too long"):
        read_invitation("mh1" + "2" * 10_000_000)


@pytest.mark.parametrize("addresses", [[], ["no slash"], ["/a b"], ["/ip4/\x1b[2J"], ["/a"] * 17, ["/" + "a" * 200]])
def test_bad_addresses_are_not_put_in(addresses: list[str]) -> None:
    with pytest.raises(ValueError):
        make_invitation(RUN, ONE.peer_id, addresses)


def cut(text: str, width: int, joint: str) -> str:
    return joint.join(text[start : start + width] for start in range(0, len(text), width))


PASTED = {
    "a sentence around it": f"Join with: peer join {GOOD} please",
    "a full stop behind it": f"{GOOD}.",
    "an ellipsis behind it": f"{GOOD}…",
    "a sentence and a full stop": f"Here you are: {GOOD}. See you there!",
    "a line break inside": f"{GOOD[:40]}\n{GOOD[40:]}",
    "line breaks of a narrow mail": cut(GOOD, 38, "\r\n"),
    "quoted lines of a reply": "> Join with\n> " + cut(GOOD, 60, "\n> ") + "\n> thanks",
    "soft line breaks of mail": cut(GOOD, 76, "=\n"),
    "continued lines of a shell": cut(GOOD, 76, "\\\n"),
    "typographic quotes": f"“{GOOD}”",
    "angle brackets": f"<{GOOD}>",
    "a link in Markdown": f"[{GOOD}](https://example.org/)",
    "bold in Markdown": f"**{GOOD}**",
    "a block of code": f"```\npeer join {GOOD}\n```",
    "a scheme before it": f"manyhands:{GOOD}",
    "zero-width characters": "\u200b".join(cut(GOOD, 20, " ").split()),
    "a byte order mark": f"\ufeff{GOOD}\u2060",
    "soft hyphens": cut(GOOD, 30, "\u00ad\n"),
    "spaces that do not break": f"\u00a0{GOOD[:50]}\u00a0{GOOD[50:]}\u00a0",
    "brackets and a comma": f"(use {GOOD}, as before)",
    "a broken one before it": f"{GOOD[:-8]}11111111 was wrong, this is right: {GOOD}",
}


@pytest.mark.parametrize("what", PASTED)
def test_what_mail_and_chats_do_to_an_invitation_does_no_harm(what: str) -> None:
    assert looks_like_invitation(PASTED[what])
    assert read_invitation(PASTED[what]) == read_invitation(GOOD)


@pytest.mark.parametrize("name", ["mh1-notes.toml", "mh1.toml", "runs/mh1abc.toml", "my run.toml", "run.toml", "mh1abcdefg"])
def test_names_of_files_are_no_invitations(name: str) -> None:
    assert not looks_like_invitation(name)


def test_a_half_that_a_shell_cut_off_is_told_to_be_quoted() -> None:
    with pytest.raises(Malformed, match="between quotes if it has line breaks"):
        read_invitation(GOOD[:80])


@pytest.mark.parametrize("piece", ["z" * 29, "1" * 29, "z", "mh1", "zz\n", "z" * 59, "1z", "“z”"])
def test_each_character_of_a_text_is_decoded_once_for_each_beginning(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode = base58.b58decode_int

    def counted(text: str) -> int:
        decoded.append(len(text))
        return decode(text)

    monkeypatch.setattr(base58, "b58decode_int", counted)
    text = (f"{PREFIX}{piece} " * MAX_INVITATION_CHARACTERS)[: 2 * MAX_INVITATION_CHARACTERS]
    with pytest.raises(Malformed):
        read_invitation(text)
    assert sum(decoded) <= MAX_BEGINNINGS * MAX_INVITATION_CHARACTERS
