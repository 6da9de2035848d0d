"""Model card of a pushed state: README.md with YAML front matter, as hubs show it.

The organiser of the run chose its name, description, licence and home page.  In the front matter they are quoted strings; in
the text all their punctuation is escaped, so that they become neither links, headings, HTML nor formulas.
"""

from __future__ import annotations

import json
import re
import string
from dataclasses import dataclass

from peer.control.history import HeldOut
from peer.joining.purpose import purpose_lines
from peer.weights.base_files import base_name, is_hub_name
from peer.weights.folders import ExportedState
from peer.weights.tokenizer_files import PLAIN_CLASS
from protocol.formatting import amount, plain
from protocol.run.manifest import RunManifest
from protocol.run.sections import AboutSection

CARD = "README.md"
MARK = "<!-- written by manyhands; a card without this line stays as it is -->"
TEXT_CHARACTERS = 500
LICENCES = frozenset(
    "apache-2.0 mit openrail bigscience-openrail-m bigscience-bloom-rail-1.0 creativeml-openrail-m afl-3.0 agpl-3.0 "
    "bsl-1.0 bsd bsd-2-clause bsd-3-clause cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 "
    "cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 "
    "cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl "
    "ecl-2.0 epl-1.0 epl-2.0 eupl-1.1 eupl-1.2 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc ms-pl mpl-2.0 "
    "odc-by odbl openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl".split()
)
"""Licences that hubs know by these words."""


@dataclass(frozen=True)
class CardFacts:
    """Facts of a card besides the run's own.  tokens: number of tokens of all members.

    held_out: held-out loss of this state; None if unknown.
    dtype: "bf16" or "fp32".  tokenizer: True if the folder has one.
    """

    state: ExportedState
    tokens: int
    held_out: HeldOut | None
    dtype: str
    tokenizer: bool


def model_card(manifest: RunManifest, facts: CardFacts, repository: str) -> bytes:
    """Return the card of a state.  repository: its name on the hub, such as owner/name."""
    about, state = manifest.about or AboutSection(), facts.state
    said = dict(purpose_lines(manifest))
    rounds = f"{state.rounds}{', the final state' * state.is_final}"
    rows = [
        ("Run", f"`{state.run}`"),
        ("Trained", escaped(said["trains"])),
        ("Data", escaped(said["reads"])),
        ("Rounds", f"{rounds} (tag `round-{state.rounds}`)"),
        ("Tokens", amount(facts.tokens).strip()),
        *([("Held-out loss", f"{facts.held_out.loss:.4f}")] if facts.held_out is not None else []),
        ("Format", facts.dtype if facts.tokenizer else f"{facts.dtype}, without a tokenizer"),
        *(
            (subject, told)
            for subject, text in (("Licence", about.licence), ("Home page", about.url))
            if (told := escaped(text))
        ),
    ]
    description = escaped(about.description)
    word = plain(about.licence, 64).lower().replace(" ", "-")
    name = re.sub(r"[^a-z0-9.-]+", "-", word).strip("-.")  # the few characters that hubs accept
    licence = [f"license: {json.dumps(word)}"] if word in LICENCES else ["license: other"] if word else []
    if name and word not in LICENCES:
        licence.append(f"license_name: {json.dumps(name)}")
    base = base_name(manifest.base) if manifest.base is not None else ""
    lines = [
        "---",
        *licence,
        *_library(base),
        "pipeline_tag: text-generation",
        "tags:",
        "- manyhands",
        "---",
        MARK,
        "",
        f"# {escaped(manifest.name) or 'Model'}",
        "",
        *([description, ""] if description else []),
        "| | |",
        "|---|---|",
        *(f"| {subject} | {statement} |" for subject, statement in rows),
        "",
        f"Volunteers trained this {'adapter' if base else 'model'} together, peer to peer, with Manyhands. Name, "
        "description and licence are the words of the run's organiser.",
        "",
        "```python",
        *["from peft import PeftModel"] * bool(base),
        f"from transformers import AutoModelForCausalLM{f', {PLAIN_CLASS}' * facts.tokenizer}",
        "",
        *_loaded(base, f'"{repository}", revision="round-{state.rounds}"'),
        *(
            [f'tokenizer = {PLAIN_CLASS}.from_pretrained("{repository}", revision="round-{state.rounds}")']
            if facts.tokenizer
            else []
        ),
        "```",
    ]
    return "\n".join([*lines, ""]).encode()


def _library(base: str) -> list[str]:
    """Return the lines of the front matter on the library; hubs refuse a base that can be no repository."""
    if not base:
        return ["library_name: transformers"]
    return ["library_name: peft", *([f"base_model: {base}", "base_model_relation: adapter"] if is_hub_name(base) else [])]


def _loaded(base: str, place: str) -> list[str]:
    """Return the lines of Python that load the model.  place: the arguments that name the pushed state."""
    if not base:
        return [f"model = AutoModelForCausalLM.from_pretrained({place})"]
    known = base if is_hub_name(base) else "FOLDER OF THE FROZEN MODEL"
    return [f'base = AutoModelForCausalLM.from_pretrained("{known}")', f"model = PeftModel.from_pretrained(base, {place})"]


ENTITIES = {"\\": "&#92;", "<": "&lt;", ">": "&gt;", "&": "&amp;"}


def escaped(text: str) -> str:
    """Return a stranger's text as one line of Markdown that shows the same characters and is nothing but text."""
    shown = plain(text, TEXT_CHARACTERS)
    return "".join(ENTITIES.get(each) or (f"\\{each}" if each in string.punctuation else each) for each in shown)
