"""Model cards: strangers' words are text and nothing else, for a reader of YAML and for one of Markdown."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from peer.control.history import HeldOut
from peer.hubs.card import CardFacts, escaped, model_card
from peer.weights.folders import ExportedState
from protocol.formats.adapter import AdapterConfig
from protocol.formatting import plain
from protocol.run.manifest import RunManifest, demo_manifest
from protocol.run.sections import AboutSection, BaseFileSection, BaseSection
from tests.hostile_texts import HARMFUL, HOSTILE

MARKUP = [
    "---\nlicense: mit\n---",
    "'}\n- &a !!python/object:os.system x",
    "a\n\n# A heading\n\n- a list\n\n```sh\nrm -rf\n```",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "[a link](https://evil.example) ![a picture](https://evil.example/x.png) <https://evil.example>",
    "https://evil.example www.evil.example me@evil.example",
    "**bold** _it_ `code` ~~gone~~ [^1] [x]: y",
    "\\\\(x^2\\\\) $$y$$ \\<b> &lt;b&gt; &#60;b&#62;",
]


def manifest_of(text: str, licence: str = "") -> RunManifest:
    about = AboutSection.model_construct(description=text, url=text, licence=licence or text)
    return demo_manifest().manifest.model_copy(update={"name": text, "about": about})


def card_of(manifest: RunManifest, *, is_final: bool = False) -> str:
    state = ExportedState("ab" * 32, manifest.name, 120, is_final)
    facts = CardFacts(state, 3_000_000, HeldOut(1.25, {}), "bf16", tokenizer=True)
    return model_card(manifest, facts, "me/model").decode()


def parsed(card: str) -> tuple[dict[str, Any], str]:
    yaml: Any = import_module("yaml")
    start, front, body = card.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(front), body


def tokens_of(body: str) -> list[tuple[str, str]]:
    """Kinds and texts of all parts, as GitHub's Markdown with links and HTML reads them."""
    markdown: Any = import_module("markdown_it")
    reader = markdown.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return [
        (each.type, each.content)
        for block in reader.parse(body)
        for each in (block, *(block.children or ()))
        if each.type != "inline"
    ]


def test_a_card_tells_the_runs_facts() -> None:
    about = AboutSection(description="Letters, by friends.", url="https://example.org/run", licence="Apache-2.0")
    card = card_of(demo_manifest().manifest.model_copy(update={"name": "our letters", "about": about}), is_final=True)
    front, body = parsed(card)
    assert front["license"] == "apache-2.0" and "license_name" not in front
    assert front["library_name"] == "transformers" and front["tags"] == ["manyhands"]
    texts = [content for _, content in tokens_of(body)]
    for fact in (
        "our letters",
        "Letters, by friends.",
        "https://example.org/run",
        "120, the final state (tag ",
        "3.0 M",
        "1.2500",
    ):
        assert fact in texts, (fact, texts)
    assert 'from_pretrained("me/model", revision="round-120")' in card


@pytest.mark.parametrize("text", [*MARKUP, *HOSTILE.values()], ids=[*map(str, range(len(MARKUP))), *HOSTILE])
def test_words_of_strangers_are_text_and_nothing_else(text: str) -> None:
    expected, body = parsed(card_of(manifest_of("plain" if plain(text) else "")))
    front, found = parsed(card_of(manifest_of(text)))
    assert {**front, "license_name": ""} == {**expected, "license_name": ""} and front.get("license", "other") == "other"
    assert set(front.get("license_name", "")) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
    kinds = [kind for kind, _ in tokens_of(found) if kind not in ("text", "text_special")]
    assert kinds == [kind for kind, _ in tokens_of(body) if kind not in ("text", "text_special")]
    assert len(found) < 10_000 and found.replace("\n", "").isprintable() and not HARMFUL.search(found)


def test_what_is_escaped_is_shown_as_it_was() -> None:
    text = r"""a !"#$%&'()*+,-./:;<=>?@[\]^_`{|}~ \\(b\\) &amp; é 中"""
    assert "".join(content for _, content in tokens_of(escaped(text))) == text


@pytest.mark.parametrize(
    ("name", "mirror", "base"),
    [
        ("Qwen3-8B", "https://huggingface.co/Qwen/Qwen3-8B/resolve/main", "Qwen/Qwen3-8B"),
        ("Qwen3-8B", "https://example.org/Qwen3-8B", None),
        ('a/b"\n---\n# c', "https://example.org/x", None),
    ],
)
def test_the_card_of_an_adapter_names_its_base_and_how_to_load_both(name: str, mirror: str, base: str | None) -> None:
    file = BaseFileSection(path="config.json", size=1, root="0" * 64)
    frozen = BaseSection.model_construct(files=[file], name=name, mirrors=[mirror], format="int4", share=True)
    manifest = demo_manifest().manifest.model_copy(update={"adapter": AdapterConfig(rank=8), "base": frozen})
    card = card_of(manifest)
    front, body = parsed(card)
    assert front["library_name"] == "peft" and front.get("base_model") == base
    (code,) = (content for kind, content in tokens_of(body) if kind == "fence")
    assert 'PeftModel.from_pretrained(base, "me/model", revision="round-120")' in code
    assert f'AutoModelForCausalLM.from_pretrained("{base or "FOLDER OF THE FROZEN MODEL"}")' in code
    assert "trained this adapter together" in body and "adapter of rank 8" in body
