"""Words that people give where a run belongs, and that name something else: each has a sentence with the remedy."""

from __future__ import annotations

import re

MULTIADDR = re.compile(r"/(ip4|ip6|dns|dns4|dns6|dnsaddr|p2p)/")
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")
PEER_ID = re.compile(r"(12D3KooW|Qm)[1-9A-HJ-NP-Za-km-z]{40,}")


def remedy_for(word: str) -> str:
    """What to do instead of giving `word`; "" for a word that may well name a run."""
    shown = "".join(character for character in word if character.isprintable())[:120]
    if URL.match(word):
        return (
            f"{shown} is a web address, and nothing is fetched from the web; download it yourself and give the file, "
            "or give the invitation (mh1…) that stands there"
        )
    if MULTIADDR.match(word):
        return (
            f"{shown} is the address of a peer, which does not say which run; ask for an invitation: there it is "
            "printed by `peer status --json` or `peer run invite`"
        )
    if HOST_AND_PORT.fullmatch(word):
        return (
            f"{shown} is an address, which does not say which run, nor who answers there; ask for an invitation: there it "
            f"is printed by `peer run invite --address {shown}`"
        )
    if PEER_ID.fullmatch(word):
        return f"{shown} is the ID of a peer, which does not say which run or where it is; ask for an invitation"
    return ""
