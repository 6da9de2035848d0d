"""Run files: what follows from something else need not be said, and all mistakes are told at once, each with a remedy."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kernels.layout import chunk_count
from protocol.formats.model import MAX_CHUNKS, MAX_PARAMETERS, ModelConfig, ffn_width, head_count, kv_head_count
from protocol.formats.training import SamplesConfig
from protocol.run import run_file
from protocol.run.manifest import MAX_ALLOWLIST, Admission, RunManifest, demo_manifest
from protocol.run.run_file import (
    RunFileError,
    derived,
    dump,
    parse_run_file,
    sections_of,
    sketch_run_file,
)
from protocol.run.sections import BUILTIN, AboutSection, Goal, Unit, builtin_source
from protocol.wire import canonical
from protocol.wire.identity import Identity, PeerId

ME = Identity.from_seed(bytes(32)).peer_id


def parsed(text: str) -> RunManifest:
    return parse_run_file('name = "run"\n' + text, ME)


def mistakes(text: str) -> list[str]:
    """What is said about a run file, a line a mistake."""
    with pytest.raises(RunFileError) as caught:
        parsed(text)
    first, *others = str(caught.value).split("\n")
    assert not others or re.fullmatch(r"run file has \d+ mistakes:", first)
    return [line.strip() for line in others] or [first.removeprefix("run file: ")]


@pytest.mark.parametrize(
    ("dim", "heads", "kv_heads", "ffn"),
    [
        (128, 4, 2, 384),
        (768, 12, 6, 2048),
        (2048, 16, 8, 5504),
        (8192, 64, 8, 21888),
    ],
)
def test_heads_and_widths_follow_from_the_model_width(dim: int, heads: int, kv_heads: int, ffn: int) -> None:
    model = parsed(f"[model]\ndim = {dim}\n").model
    assert (model.heads, model.kv_heads, model.ffn) == (heads, kv_heads, ffn)


@pytest.mark.parametrize(("written", "codec"), [("", "int4"), ('codec = "auto"\n', "int4"), ('codec = "top64"\n', "top64")])
def test_the_codec_is_chosen_for_those_who_do_not(written: str, codec: str) -> None:
    assert parsed(written).codec == codec


def test_a_run_with_named_founders_admits_by_invitation_unless_its_file_says_otherwise() -> None:
    assert parsed("").admission is parsed(f'founders = ["{ME}"]\n').admission is Admission.INVITE
    assert parsed('founders = "anyone"\n').admission is Admission.OPEN, "a run that anybody may begin has nobody to ask"
    assert parsed('admission = "open"\n').admission is Admission.OPEN
    assert parsed('founders = "anyone"\nadmission = "invite"\n').admission is Admission.INVITE


def test_a_run_that_names_data_of_its_own_or_reads_no_bytes_does_not_read_the_text_of_the_program() -> None:
    def data(section: object, **others: object) -> object:
        return derived({"data": section, **others})["data"]

    assert data({}) == {"corpora": [BUILTIN.model_dump()], "sources": [builtin_source(512).model_dump()]}
    others: list[object] = [
        {"from": "here"},
        {"corpora": []},
        {"sources": []},
        {"format": "chat"},
        {"sequence_length": "x"},
        1,
    ]
    for section in others:
        assert data(section) == section
    assert data({}, tokenizer={}) == {}


def test_founders_are_listed_in_any_order() -> None:
    others = [Identity.from_seed(bytes([number]) * 32).peer_id for number in (7, 8, 9)]
    for peers in (others, others[::-1], others * 2):
        assert parsed(f"founders = {peers}\n").founders == sorted(others)


LOCAL = '[data]\nsource = "local"\n'


def test_a_run_on_the_members_own_data_says_how_they_are_read_and_names_none() -> None:
    manifest = parsed(LOCAL + 'text = "body"\nwhere = { ward = "a", year = [2024, 2025] }\nmost_characters = 900\n')
    local = manifest.data.local
    assert local is not None and (local.text, local.id, local.most_characters) == ("body", "", 900)
    assert [(each.field, each.values) for each in local.where] == [("ward", ["a"]), ("year", ["2024", "2025"])]
    assert manifest.data.is_local and not manifest.files and not manifest.leases_rows(0)
    assert parse_run_file(dump(manifest), ME) == manifest
    assert parsed(LOCAL).data.local is None and parsed(LOCAL + 'format = "preference"\n').data.format == "preference"


def test_a_written_out_run_is_the_same_run() -> None:
    for manifest in (demo_manifest().manifest, parsed("[model]\ndim = 4096\nlayers = 30\n")):
        assert parse_run_file(dump(manifest), PeerId(manifest.organiser)) == manifest
        assert derived(tomllib.loads(dump(manifest))) == tomllib.loads(dump(manifest)), "nothing is left to derive"


@pytest.mark.parametrize(
    ("dim", "layers", "billions", "chunk_parameters"), [(2048, 20, 1, 1 << 22), (5120, 37, 10, 1 << 22)]
)
def test_the_default_chunk_follows_the_model(dim: int, layers: int, billions: int, chunk_parameters: int) -> None:
    manifest = parsed(f"[model]\ndim = {dim}\nlayers = {layers}\n")
    assert round(manifest.parameters / 1e9) == billions
    assert manifest.chunk_parameters == chunk_parameters and manifest.chunks <= MAX_CHUNKS
    streamed = parsed(f"fragments = 4\n[model]\ndim = {dim}\nlayers = {layers}\n")
    assert manifest.chunks > 32 and 32 <= streamed.chunks <= manifest.chunks
    assert manifest.chunks == chunk_count(manifest.parameters, chunk_parameters) == len(manifest.layouts.result)


@settings(deadline=None)
@given(st.integers(4, 1 << 14), st.integers(1, 256))
def test_no_model_is_refused_for_its_number_of_chunks(half: int, layers: int) -> None:
    """Whatever its width: only a model over the limit is refused."""
    dim = 2 * half
    heads = head_count(dim)
    assert heads is not None
    shape = ModelConfig.model_construct(
        vocab=256, dim=dim, layers=layers, heads=heads, kv_heads=kv_head_count(heads), ffn=ffn_width(dim), tied=True
    )
    text = f"[model]\ndim = {dim}\nlayers = {layers}\n"
    if shape.parameters <= MAX_PARAMETERS:
        assert parsed(text).parameters == shape.parameters
    else:
        (said,) = mistakes(text)
        assert "make vocab, dim, ffn or layers smaller" in said


def fitting(said: str) -> tuple[str, str]:
    """(what to replace, with what) by the remedy in a sentence: `field = value would do`."""
    field, value = re.findall(r"(\w+) = (\w+)(?= or | would do)", said)[-1]
    return rf"(?m)^{field} = .*$", f"{field} = {value}"


@pytest.mark.parametrize(
    "text",
    [
        "[model]\ndim = 130\nheads = 4\n",
        "[model]\ndim = 96\nheads = 5\n",
        "[model]\nheads = 4\nkv_heads = 3\n",
        "chunk_parameters = 256\n[model]\ndim = 2048\n",
        "chunk_parameters = 1000\n",
        "checkpoint_chunk_bytes = 4096\n[model]\ndim = 2048\n",
        "checkpoint_chunk_bytes = 5000\n",
        "[data]\nsequence_length = 131072\nsequences_per_step = 65536\n",
        "[rounds]\nmin_members = 9\nmax_members = 2\n",
        "protocol_min = 2\nprotocol_max = 1\n",
        "fragments = 3\n[rounds]\ninner_steps = 20\n",
        "[rounds]\ndelay = 25\n",
        '[rounds]\nmax_members = 64\n[rl]\nenvironment = "add"\nbatches_per_round = 512\n',
    ],
)
def test_the_value_that_a_sentence_names_fits(text: str) -> None:
    (said,) = mistakes(text)
    assert "\n" not in said
    parsed(re.sub(*fitting(said), text))


def test_a_run_has_one_total_in_tokens_or_in_rounds() -> None:
    assert parsed("total_rounds = 7\n").goal == Goal(Unit.ROUNDS, 7, 0.2)
    assert parsed("total_tokens = 9\n[inner]\ncooldown = 0.5\n").goal == Goal(Unit.TOKENS, 9, 0.5)
    (said,) = mistakes("total_rounds = 7\ntotal_tokens = 9\n")
    assert said.endswith("remove one of them")
    for text in ("total_rounds = 0\n", "total_tokens = 1e9\n", "total_tokens = -5\n", 'total_rounds = "all"\n'):
        (said,) = mistakes(text)
        assert "it must be" in said or "greater than" in said


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("[model]\ndim = 64\nlayers = 2\n", Goal(Unit.TOKENS, 200 * 20 * 4 * 512, 0.2)),
        ("[model]\ndim = 512\nlayers = 8\n", Goal(Unit.TOKENS, 20 * 24_256_000, 0.2)),
        ('[rl]\nenvironment = "add"\nwarm_rounds = 5\n', Goal(Unit.ROUNDS, 205, 0.2)),
    ],
)
def test_the_total_follows_from_what_is_trained_where_the_file_says_none(text: str, goal: Goal) -> None:
    found = parsed(text)
    assert found.goal.unit is goal.unit
    if goal.unit is Unit.TOKENS:
        assert found.goal.total == max(20 * found.parameters, 200 * found.tokens_per_round)
    else:
        assert found.goal == goal


CHATS = f'corpora = [{{size = 1, root = "{"ab" * 32}"}}]\nformat = "chat"\nsequence_length = 256\n'


def chats(rows: int, counted: int, more: str = "", head: str = "") -> str:
    return f'{head}[data]\n{CHATS}sources = [{{name = "talk", rows = {rows}, counted = {counted}}}]\n{more}'


def test_chats_are_read_three_times_however_many_members_there_are() -> None:
    found = parsed(chats(40, 2500))
    assert found.goal == Goal(Unit.TOKENS, 3 * 2500, 0.2) and found.times_read() == {"talk": 3}
    assert found.rounds.inner_steps == 3, "30 steps of one member are ten rounds, so several members read little more"
    assert found.inner.warmup_steps == 1
    assert parsed(chats(40, 2500, "epochs = 2\n")).goal.total == 2 * 2500
    assert parsed(chats(40, 2500, head="total_rounds = 100\n")).times_read() == {"talk": 200}
    assert parsed(chats(40, 2500, "[rounds]\ninner_steps = 20\n")).rounds.inner_steps == 20
    assert parsed(chats(10**6, 10**7)).rounds.inner_steps == 20, "long runs keep their rounds"


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("total_rounds = 5\n[rounds]\ninner_steps = 30\n", 7),
        ("total_rounds = 5\n[inner]\nwarmup_steps = 90\n", 90),
        ("total_tokens = 819_200\n", 20),
    ],
)
def test_the_warm_up_is_short_in_a_short_run(text: str, steps: int) -> None:
    assert parsed(text).inner.warmup_steps == steps


@pytest.mark.parametrize(
    ("context", "said", "lengths"),
    [
        (2048, "", (2048, 1024)),
        (1 << 17, "", (40_960, 20_480)),
        (2048, "max_tokens = 100", (2048, 100)),
        (2048, "max_tokens = 4096", (4096, 4096)),
        (0, "", (40_960, 32_768)),
    ],
)
def test_the_lengths_of_rollouts_follow_from_the_positions_of_the_model(
    context: int, said: str, lengths: tuple[int, int]
) -> None:
    found = parsed(f'[model]\ncontext = {context}\n[rl]\nenvironment = "add"\n{said}\n').rl
    assert found is not None and (found.row_tokens, found.max_tokens) == lengths


@pytest.mark.parametrize("counted", [0, 1, 1 << 61])
def test_a_source_counts_between_one_and_all_tokens_of_its_rows(counted: int) -> None:
    found = parsed(chats(40, counted, head="total_tokens = 1_000_000_000\n"))
    assert 40 <= found.data.epoch_tokens(found.data.sources[0]) <= 40 * 256
    assert found.times_read()["talk"] == pytest.approx(1e9 / found.data.epoch_tokens(found.data.sources[0]), rel=1e-3)


def test_all_mistakes_are_told_at_once() -> None:
    said = mistakes(
        'seeed = 1\nchunk_parameters = 257\nadmission = "allowlist"\n'
        "[model]\ndim = 8192\nnorm_eps = 7.0\nlayers = 32\n"
        '[rounds]\ngrace_s = -1\nmin_members = 5\nmax_members = 3\n[inner]\ntotal_steps = 500\nlr = "fast"\n'
    )
    parts = [
        "did you mean seed",
        "a multiple of 256",
        "the allowlist is empty",
        "model.norm_eps is 7.0",
        "22.05 G parameters",
        "grace_s",
        "min_members (5)",
        "inner.total_steps is not a field",
        "inner.lr is 'fast'",
    ]
    assert len(said) == len(parts)
    assert all(any(part in line for line in said) for part in parts)


def test_nothing_is_said_that_only_follows_from_another_mistake() -> None:
    (said,) = mistakes('[model]\ndim = "wide"\nheads = 3\n')
    assert "model.dim" in said
    (said,) = mistakes('admission = "allowlist"\nallowlist = ["nobody"]\n')
    assert "allowlist" in said and "empty" not in said
    (said,) = mistakes("model = 3\nchunk_parameters = 256\n")
    assert said.startswith("model is 3")


def test_hundreds_of_mistakes_are_told_in_part() -> None:
    lines = mistakes("".join(f"field{number} = 1\n" for number in range(300)))
    assert len(lines) == 21 and lines[-1] == "and 280 more"


CROWD = [f"{number:046}".replace("0", "z") for number in range(MAX_ALLOWLIST + 1)]
NO_HOME_PAGES = [
    "http://bees.example",
    "javascript:alert(1)",
    "https://",
    "https://bees.example@evil.example/",
    "https://bees.example/<b>",
    'https://bees.example/"onclick=',
    "https://b\u0435es.example",
    "https://bees.example /",
]
STEPS = "[rounds]\ninner_steps = {}\ndelay = {}\n"
HOME_PAGE = "change it (Home page of the run: an address that begins with https"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('data = "corpus"', "data is 'corpus'; it must be a section with fields, below a line [data]"),
        ("[[model]]\ndim = 64", "model is [{'dim': 64}]; it must be a section with fields, below a line [model]"),
        ("fragments = 2.5", "fragments is 2.5; it must be a whole number"),
        ("founders = 3", 'founders is 3; it must be "anyone" or a list of peer IDs'),
        ('founders = ["x"]', "an entry of founders is 'x'; it must be a peer ID, as `peer id` prints it"),
        (f"allowlist = {CROWD}", "; it must be a list of at most 4096 ("),
        ('organiser = "somebody"', "organiser names another peer"),
        ("zzz = 1", "zzz is not a field of a run; remove it"),
        (
            'codec = "top64"\nchunk_parameters = 256\n',
            "a multiple of 4096 with the codec top64; chunk_parameters = 4096 would",
        ),
        (
            "fragments = 4\n" + STEPS.format(30, 0),
            "inner_steps (30) must be a multiple of fragments (4), which are exchanged in turn; inner_steps = 32 would do",
        ),
        (
            "fragments = 4\n" + STEPS.format(20, 6),
            "rounds.delay (6) is more than the steps of a round (20 / 4), at whose end the last round's result is needed; "
            "delay = 5 would do",
        ),
        ("outer = 3", 'outer is 3; it must be "auto" or a section with lr and momentum'),
        ("[outer]\nlr = 0", "outer.lr is 0; it must be more than 0 (Outer learning rate; default 0.7)"),
        ('[rl]\nenvironment = "add"\ngroup_size = 1', "rl.group_size is 1; it must be at least 2"),
        ("[data]\nphases = [3]", "an entry of data.phases is 3; it must be a section with fields in braces"),
        (
            '[data]\nsources = [{name = "a", rows = 1}, {name = "b", rows = 0}]',
            "rows in entry 2 of data.sources is 0; it must be at least 1",
        ),
        (LOCAL + 'from = "texts"\n', "each member names its own data"),
        (LOCAL + "epochs = 2\n", "epochs would name data of the run"),
        (LOCAL + '[rl]\nenvironment = "add"\n', "a run with rollouts learns from problems that all peers can check"),
        ("[data.local]\n", 'source is not "local"; remove local'),
        ('[samples]\nprompts = ["a", "b", "c", "d", "e"]', "it must be a list of at most 4"),
        ("[samples]\ntokens = 4", "samples.prompts is missing; add it (The prompts, each without line breaks"),
        ('[samples]\nprompts = ["a", "a"]', "[samples] two prompts are the same; remove one of them"),
        *((f"[about]\nurl = {json.dumps(url)}", HOME_PAGE) for url in NO_HOME_PAGES),
    ],
    ids=lambda value: value[:40],
)
def test_a_mistake_is_told_in_words_of_the_file_and_none_of_a_library(text: str, told: str) -> None:
    (said,) = mistakes(text)
    assert told in said and len(said) < 400
    assert not re.search(r"Input|String|List|dict|valid|instance|item|equal to", said.partition("(")[0])


def test_a_manifest_is_never_completed() -> None:
    """Derivation is the run file's; the manifest's own defaults stay what they are, whatever the width."""
    assert (ModelConfig(dim=2048, heads=16).ffn, ModelConfig(dim=2048, heads=16).kv_heads) == (384, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"\\u001b[2J" = 1', "is not a field of a run"),
        ('[model]\n"\\u001b]0;x\\u0007" = 1', "is not a field of a run"),
        ('[model]\n"\\u202e" = 1', "is not a field of a run"),
        (f'"{"x" * 40_000}" = 1', "is not a field of a run"),
        ("seed = " + "9" * 5000, "not valid TOML"),
        ('"\\u001b" = 1\n"\\u001b" = 2', "not valid TOML"),
        ("a" + ".a" * 20_000 + " = 1", "more than 64 dots"),
        ('"a"' + ' . "a"' * 20_000 + " = 1", "more than 64 dots"),
        ("[a" + ".a" * 20_000 + "]", "more than 64 dots"),
        ("x = {a" + ".a" * 20_000 + " = 1}", "more than 64 dots"),
        ("a = " + "[" * 50_000, "nested too deeply"),
    ],
    ids=["escape", "section", "direction", "long", "integer", "twice", "dotted", "quoted", "header", "inline", "deep"],
)
def test_a_hostile_file_is_refused_in_printable_sentences_of_a_line_each(text: str, said: str) -> None:
    """A key of 20 000 parts took 7 s, one with escape codes moved the cursor, and a long integer ended the command."""
    told = mistakes(text)
    assert any(said in line for line in told)
    assert all(line.isprintable() and len(line) < 400 for line in told)


def test_words_that_cannot_be_seen_are_written_as_numbers() -> None:
    words = 'a\u200bb\u00ad\U000e0041\u00a0"c\\ é 中'
    quoted = json.dumps(words, ensure_ascii=False)
    run = parsed(f"[about]\ndescription = {quoted}\n[samples]\nprompts = [{quoted}]\n")
    text = dump(run)
    assert r'"a\U0000200bb\U000000ad\U000e0041\U000000a0\"c\\ é 中"' in text
    assert text.replace("\n", "").isprintable() and parse_run_file(text, ME) == run


@pytest.mark.parametrize("data", ["5", '"sequence_length"', "[]"])
def test_a_sketch_of_a_file_without_a_data_section_says_so(data: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'name = "run"\ndata = {data}\n')
    with pytest.raises(RunFileError, match="data "):
        sketch_run_file(path, ME)


def test_sections_of_a_file_with_a_long_dotted_name_are_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[rl]\na" + ".a" * 20_000 + " = 1")
    assert sections_of(path) == {}


HOSTILE = [
    "a\x1b[2Jb",
    "a\x07b",
    "a\nb",
    "a\x9b31mb",
    "a\u202eb",
    "a\u2066b",
    "a\u200fb",
    "a\u061cb",
    "a\u2028b",
    "a" * (1 << 16),
]
"""Texts that a terminal would obey, that turn the direction of what stands beside them, or that fill memory."""


@pytest.mark.parametrize("field", ["about.description", "about.licence", "about.url", "samples.prompts"])
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_words_of_a_run_are_refused_in_a_file_and_in_a_manifest(field: str, text: str) -> None:
    section, name = field.split(".")
    value = [text] if name == "prompts" else text
    with pytest.raises(RunFileError) as refused:
        parsed(f"[{section}]\n{name} = {json.dumps(value)}\n")
    told = str(refused.value)
    assert f"{field} is " in told and ("change it" in told or "it must be text of at most" in told)
    assert told.isprintable() and len(told) < 400
    with pytest.raises(ValidationError):
        (AboutSection if section == "about" else SamplesConfig).model_validate({name: value})


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("about", {"description": 'Für “Bienen” 🐝: \\, "', "url": "https://bees.example:8443/a?b#c", "licence": "CC0-1.0"}),
        ("samples", {"prompts": ["Once upon a time", "Bienen sind “🐝”: "], "tokens": 48}),
    ],
)
def test_words_of_a_run_come_back_and_are_not_in_other_manifests(section: str, said: dict[str, object]) -> None:
    run = parsed(f"[{section}]\n" + "".join(f"{name} = {json.dumps(said[name], ensure_ascii=False)}\n" for name in said))
    assert run.model_dump()[section] == said and parse_run_file(dump(run), ME) == run
    assert section not in canonical.decode(parsed("").encode(), max_bytes=1 << 20)
    assert run.trainer_sections().get("samples") == (said if section == "samples" else None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "".join(f"[s{number}]\n" for number in range(5000)),
        "".join(f"[[data.sources]]\nf{number} = 1\n" for number in range(5000)),
        "s = [" + ",".join(f"{{f{number}=1}}" for number in range(5000)) + "]",
        "[[data.phases]]\n[data.phases.weights]\n" + "".join(f"f{number} = 1\n" for number in range(5000)),
    ],
    ids=range(4),
)
def test_files_of_very_many_fields_are_refused_before_they_are_checked(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_file, "_mistakes", None)
    with pytest.raises(RunFileError, match=r"^run file has \d+ fields and sections, .*; give the path of a run file$"):
        parse_run_file(text, ME)


LONG = "a" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        f"[{LONG}]",
        f"{LONG} = 1",
        f'name = "{LONG}"',
        f'organiser = "{LONG}"',
        f'codec = "{LONG}"',
        f'founders = ["{LONG}"]',
        f'[model]\ndim = "{LONG}"',
        f"[model]\n{LONG} = 1",
        f'[[data.sources]]\nname = "{LONG}"',
        f'[data]\nsource = "local"\nfrom = "{LONG}"',
        f"total_rounds = {'1' * 4000}",
        f"[model]\ndim = [{'[' * 60}{']' * 60}]",
        f"= {LONG}",
        f'[rl]\nenvironment = "{LONG}"',
        "".join(f"f{number} = 1\n" for number in range(4000)),
    ],
    ids=range(15),
)
def test_sentences_about_long_texts_are_short(text: str) -> None:
    with pytest.raises(RunFileError) as refused:
        parse_run_file(text, ME)
    lines = str(refused.value).splitlines()
    assert len(lines) <= 22 and max(map(len, lines)) < 600
