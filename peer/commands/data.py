"""`peer data`: build, import, show, verify and sample corpora."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from peer.commands import add_command, add_group, whole_number
from peer.console.asking import print_result
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from peer.commands import Subparsers
    from peer.corpora.build import BuildProgress
    from peer.corpora.folder import FinishedCorpus
    from peer.corpora.inputs import BuildInput, InputsSurvey
    from peer.corpora.options import BuildOptions, BuildTally, TokenFormat


SOURCE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
SOURCE_CHARS = 64
BYTES = "bytes"
LEAST_TOKENS, MOST_TOKENS = 300, 1 << 17
"""Range of the vocabulary size of a trained tokenizer; its bytes and special tokens take 258."""
FORMS = ("lines", "array", "object", "table", "page", "text")
"""Names in `peer.corpora.forms.READ_AS`, which is not imported to describe the command line."""
MAX_PERCENT = 100.0


def register(subparsers: Subparsers) -> None:
    """Describe the command lines."""
    parser = add_command(subparsers, "data", "build corpora from your own data, and look into them", None)
    group = add_group(parser)
    build = add_command(
        group,
        "build",
        "build a corpus from files, folders and data sets",
        run_build,
        epilog="Inputs are files and folders of text, code, web pages, JSON, CSV, Parquet and Arrow, also compressed (.gz, "
        ".zst, .xz, .bz2), and hf:OWNER/NAME[:CONFIG][@SPLIT].  The content of a file tells its form.  An interrupted build "
        "goes on if the same command is given again.",
    )
    _add_common(build)
    build.add_argument(
        "--tokenizer",
        type=_tokenizer,
        metavar="TOKENIZER",
        help="folder with a tokenizer.json, the file itself, bytes, or a number of tokens for one that is trained on the "
        "inputs (default: trained, with 4096 to 32768 tokens by their size)",
    )
    build.add_argument(
        "--kind", choices=["text", "chat", "preference"], default="text", help="kind of the rows (default: text)"
    )
    build.add_argument(
        "--sequence-length",
        type=whole_number(1, 1 << 17),
        metavar="TOKENS",
        help="chats and preferences: predicted tokens of a row, the run's data.sequence_length",
    )
    build.add_argument("--template", metavar="NAME", help="chats and preferences: template (default: the tokenizer's)")
    build.add_argument("--text", default="text", metavar="FIELD", help="field of the text; a.b is b in a (default: text)")
    build.add_argument(
        "--where",
        action="append",
        type=_condition,
        default=[],
        metavar="FIELD=VALUE[,VALUE…]",
        help="take only rows with one of these values, such as licence=mit,apache-2.0; may be repeated",
    )
    build.add_argument(
        "--least", type=whole_number(1, 1 << 40), default=1, metavar="CHARACTERS", help="shortest text that is taken (1)"
    )
    build.add_argument(
        "--most", type=whole_number(1, 1 << 40), metavar="CHARACTERS", help="longest text that is taken (default: any)"
    )
    build.add_argument(
        "--most-rows", type=whole_number(1, 1 << 40), metavar="N", help="rows that are read of each input (default: all)"
    )
    build.add_argument(
        "--keep-repeated",
        action="store_true",
        help="keep documents that repeat another one's text (default: only the first)",
    )
    build.add_argument(
        "--read-as",
        choices=FORMS,
        help="read every file of text in this form; text: each file is one document, as with code (default: its own form)",
    )
    build.add_argument(
        "--leave-out",
        action="append",
        metavar="PATTERN",
        help="leave out files in folders, such as '*.png' or 'tests/*'; may be repeated",
    )
    build.add_argument("--id", metavar="FIELD", help="field that identifies a document (default: its text identifies it)")
    build.add_argument(
        "--workers",
        type=whole_number(1, 1024),
        default=0,
        metavar="N",
        help="processes (default: one per core, none for a small corpus)",
    )
    tokens = add_command(
        group,
        "import",
        "build a corpus from files of tokens",
        run_import,
        epilog="Inputs are Megatron's .bin with its .idx, DataTrove's .ds with its .ds.index, and .npy arrays of tokens, "
        "all made with the tokenizer that is named.",
    )
    _add_common(tokens)
    tokens.add_argument(
        "--tokenizer", required=True, metavar="FOLDER", help="folder with a tokenizer.json, the file itself, or bytes"
    )
    for name, summary, run in (
        ("show", "show the sources of a corpus, their tokens, and the beginning of a document", run_show),
        (
            "verify",
            "check a corpus: its manifest and blocks against their hashes, and every token against the vocabulary",
            run_verify,
        ),
        ("sample", "print documents of a corpus as text", run_sample),
    ):
        command = add_command(group, name, summary, run)
        command.add_argument("folder", metavar="FOLDER", help="folder of the corpus")
        if name == "sample":
            command.add_argument(
                "count",
                metavar="N",
                nargs="?",
                type=whole_number(1, 10_000),
                default=3,
                help="number of documents of each source (3)",
            )
            command.add_argument("--held-out", action="store_true", help="documents that are held out")
        command.add_argument("--json", action="store_true", help="JSON for programs")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="new folder for the corpus")
    parser.add_argument(
        "inputs", metavar="INPUT", nargs="+", help="an input, or NAME=INPUT to name its source; inputs may share a name"
    )
    parser.add_argument(
        "--end", metavar="TOKEN", help="end token, by name or number (default: as the tokenizer's folder says)"
    )
    parser.add_argument(
        "--source", metavar="NAME", help="source of the inputs without a name (default: one source for each)"
    )
    parser.add_argument(
        "--held-out", type=_percent, default=1.0, metavar="PERCENT", help="share of the documents that is held out (1)"
    )
    parser.add_argument(
        "--seed", type=whole_number(0, (1 << 63) - 1), default=0, metavar="N", help="key of the order and held-out share (0)"
    )
    parser.add_argument(
        "--block", type=whole_number(1 << 12, 1 << 20), default=1 << 20, metavar="BYTES", help="largest block (1048576)"
    )
    parser.add_argument(
        "--bad",
        type=_percent,
        default=1.0,
        metavar="PERCENT",
        help="share of bad rows, or of bytes passed over, above which the build fails (1)",
    )
    parser.add_argument("--json", action="store_true", help="progress and result as JSON lines")


def run_build(args: argparse.Namespace) -> int:
    """Build a corpus."""
    from peer.corpora.options import BuildOptions, FieldSelection

    where: dict[str, tuple[str, ...]] = {}
    for name, values in args.where:
        where[name] = (*where.get(name, ()), *values)
    inputs = [_input(text, args.source) for text in args.inputs]
    options = BuildOptions(
        tokens=_format(args, args.kind, args.sequence_length, args.template),
        fields=FieldSelection(
            args.text,
            args.id,
            args.least,
            args.most,
            where,
            args.most_rows,
            args.keep_repeated or None,
            args.read_as,
            tuple(args.leave_out or ()) or None,
        ),
        held_out_percent=args.held_out,
        seed=args.seed,
        block_bytes=args.block,
        bad_percent=args.bad,
        workers=args.workers,
    )
    if not isinstance(args.tokenizer, int | None):
        return _build(args, inputs, options)
    with TemporaryDirectory() as folder:
        return _build(args, inputs, replace(options, tokens=_trained(args, inputs, options, Path(folder))))


def _trained(args: argparse.Namespace, inputs: list[BuildInput], options: BuildOptions, folder: Path) -> TokenFormat:
    """Train a tokenizer, print its size, and return the form of the tokens."""
    from peer.console.streams import print_json
    from peer.corpora.build import check_build
    from peer.corpora.vocabulary import train_tokenizer
    from protocol.formatting import size

    check_build(inputs, options, Path(args.out))
    trained = train_tokenizer(inputs, options, args.tokenizer)
    if args.json:
        print_json({"event": "tokenizer", "tokens": trained.tokens, "sample_bytes": trained.sample_bytes})
    else:
        print(
            f"trained     a tokenizer of {trained.tokens} tokens, on {size(trained.sample_bytes)} of these inputs",
            flush=True,
        )
    return trained.format(folder / "tokenizer.json", options.tokens, args.template)


def run_import(args: argparse.Namespace) -> int:
    """Build a corpus from files of tokens."""
    from peer.corpora.foreign import token_input
    from peer.corpora.options import BuildOptions

    tokens = _format(args, "text", None, None)
    end = tokens.ends[0] if tokens.ends else 0
    inputs = [token_input(*_named(text, args.source), end) for text in args.inputs]
    options = BuildOptions(
        tokens, held_out_percent=args.held_out, seed=args.seed, block_bytes=args.block, bad_percent=args.bad
    )
    return _build(args, inputs, options)


def _build(args: argparse.Namespace, inputs: list[BuildInput], options: BuildOptions) -> int:
    from peer.console.streams import print_json
    from peer.corpora.build import PARTIAL, build
    from peer.corpora.folder import FinishedCorpus
    from protocol.formatting import amount, duration

    out, shows = Path(args.out), sys.stderr.isatty()

    def show(progress: BuildProgress) -> None:
        """Print the progress as JSON, or on a terminal in one line."""
        if args.json:
            print_json({"event": "progress", **asdict(progress)})
        elif shows:
            share = f"{100 * progress.done / progress.total:3.0f} %" if progress.total else ""
            left = f", {duration(progress.left_s)} to go" if progress.left_s is not None else ""
            line = (
                f"{progress.phase} {share}  {amount(progress.documents)} documents, {amount(progress.tokens)} tokens, "
                f"{amount(progress.tokens_per_s)} tokens/s{left}"
            )
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    try:
        result = build(inputs, options, out, show)
    except KeyboardInterrupt:
        again = "" if any(each.is_in_memory for each in inputs) else "give the same command again to go on, or "
        print(f"\npeer: interrupted; {again}remove {out}{PARTIAL}", file=sys.stderr)
        raise
    corpus = FinishedCorpus(out)
    if shows and not args.json:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    held_out = {"cut_for_held_out": list(result.cut), "shortage": result.shortage}
    fields = {"event": "built", **_described(corpus), **held_out}
    fields |= {"tally": result.tally.to_json(), **result.survey.to_json()}
    cut = [f"{'held out':<12}{CUT.format(', '.join(result.cut))}"] if result.cut else []
    lacks = [f"{'too small':<12}{result.shortage}"] if result.shortage else []
    return print_result(args, fields, [*_lines(corpus), *cut, *_files(result.survey), *_left_out(result.tally), *lacks])


def _input(text: str, source: str | None) -> BuildInput:
    from peer.corpora.inputs import HUB, BuildInput

    name, where = _split_name(text)
    if where.startswith(HUB):
        return BuildInput(
            name or source or _source_name(where.removeprefix(HUB).partition("@")[0].rpartition("/")[2]), where
        )
    return BuildInput(*_named(text, source))


def _named(text: str, source: str | None) -> tuple[str, Path]:
    """Return the source and the path of an input."""
    name, where = _split_name(text)
    path = Path(where)
    return name or source or _source_name(path.absolute().name.partition(".")[0] or path.absolute().name), path


def _split_name(text: str) -> tuple[str, str]:
    """Return the name before an input, and the input; the name of an existing file is not split at its =."""
    name, equals, where = text.partition("=")
    if equals and not SOURCE_NAME.fullmatch(name) and not Path(text).exists() and Path(where).exists():
        raise PeerError(
            f"{name!r} cannot be the name of a source, which has up to {SOURCE_CHARS} letters, digits, _, . and -; choose "
            "another before the =",
            ExitCode.INPUT,
        )
    return (name, where) if equals and SOURCE_NAME.fullmatch(name) and where and not Path(text).exists() else ("", text)


def _source_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+|^[.-]+", "_", text)[:SOURCE_CHARS] or "data"


def _format(args: argparse.Namespace, kind: str, length: int | None, template: str | None) -> TokenFormat:
    """Return the form of the tokens; the tokenizer's folder says what the options leave open."""
    from peer.corpora.options import TokenFormat, special_token
    from protocol.corpora.manifest import CorpusKind

    if (kind == "text") != (length is None):
        raise PeerError(
            "--sequence-length is required for --kind chat and preference, and not allowed otherwise", ExitCode.USAGE
        )
    row_tokens = length + 1 if length is not None else 0
    if isinstance(args.tokenizer, int | None):
        if args.end is not None:
            raise PeerError("a tokenizer that is trained has its own end token; leave --end out", ExitCode.USAGE)
        template = None  # the sample's texts have no template
    if args.tokenizer == BYTES or isinstance(args.tokenizer, int | None):
        if args.end not in (None, "0"):
            raise PeerError("the end token of bytes is 0; leave --end out", ExitCode.USAGE)
        return TokenFormat(
            CorpusKind(kind), template=template or ("raw" if kind == "text" else "plain"), row_tokens=row_tokens
        )
    from peer.weights.tokenizer_files import check_readable, tokenizer_facts

    path = Path(args.tokenizer)
    if not path.exists():
        number = f", or a number of tokens from {LEAST_TOKENS} to {MOST_TOKENS}" * (args.run is run_build)
        raise PeerError(
            f"there is no {path}; give --tokenizer a folder with a tokenizer.json, that file, or {BYTES}{number}",
            ExitCode.INPUT,
        )
    if path.is_dir():
        check_readable(path)
        path /= "tokenizer.json"
    said: dict[str, Any] = {"template": template} if template is not None else {}
    if args.end is not None:
        said["ends"] = [special_token(path, args.end)]
    facts = tokenizer_facts(path, said)
    return TokenFormat(CorpusKind(kind), path, tuple(facts["ends"]), facts["template"], row_tokens)


def _tokenizer(text: str) -> str | int:
    """Return a number of tokens, or the text that names a tokenizer."""
    return whole_number(LEAST_TOKENS, MOST_TOKENS)(text) if text.isascii() and text.isdigit() else text


def _condition(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, values = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text} is not a condition; write FIELD=VALUE or FIELD=VALUE,VALUE")
    return name, tuple(values.split(","))


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < MAX_PERCENT:
        raise argparse.ArgumentTypeError(f"{text} is not a percentage; give a number from 0 to below 100")
    return value


# ------------------------------------------------------------------------------------------------------------------------
# Output.


def _described(corpus: FinishedCorpus) -> dict[str, Any]:
    from peer.corpora.folder import summaries

    manifest = corpus.manifest
    facts = manifest.model_dump(
        include={"kind", "vocab", "end", "token_bytes", "row_tokens", "block_tokens", "shard_blocks"}
    )
    return {
        "folder": str(corpus.path),
        "digest": corpus.digest.hex(),
        "tokenizer": manifest.tokenizer.hex(),
        **facts,
        "splits": summaries(manifest),
        "recipe": manifest.recipe,
    }


def _lines(corpus: FinishedCorpus) -> list[str]:
    from peer.corpora.folder import summaries
    from peer.formatting import table
    from protocol.formatting import amount, clean, size

    manifest, splits = corpus.manifest, summaries(corpus.manifest)
    tokens = sum(each["tokens"] for each in splits)
    blocks, shards = (sum(each[name] for each in splits) for name in ("blocks", "shards"))
    block = size(manifest.block_tokens * manifest.bytes_per_token)
    lines = [
        f"corpus      {clean(str(corpus.path), 500)} ({size(tokens * manifest.bytes_per_token)})",
        f"digest      {corpus.digest.hex()}",
        f"kind        {manifest.kind.value}" + (f", rows of {manifest.row_tokens - 1} tokens" * bool(manifest.row_tokens)),
        f"tokenizer   {manifest.tokenizer.hex()[:16] if any(manifest.tokenizer) else BYTES}, {manifest.vocab} tokens",
        f"blocks      {blocks} of {block} in {shards} shards",
    ]
    rows = [("SOURCE", "SPLIT", "TOKENS", "DOCUMENTS", "SHARE")]
    for each in splits:
        share, which = f"{100 * each['share']:.1f} %", each["split"].replace("_", " ")
        rows.append((each["source"], which, amount(each["tokens"]), amount(each["documents"]), share))
    return lines + table(rows, numbers=(2, 3, 4))


CUT = "the end of a document of {}, because whole documents would not give about that share"
SHOWN_NAMES = 3


def _files(survey: InputsSurvey) -> list[str]:
    """Return lines with the files that were read, by form, and the files that were passed over, by reason."""
    from protocol.formatting import many, size, visible

    lines = []
    if survey.read:
        lines.append(
            f"{'read':<12}" + ", ".join(f"{form.value}: {many(n, 'file')}" for form, n in sorted(survey.read.items()))
        )
    for reason, files in sorted(survey.skipped.items()):
        names = ", ".join(files.names[:SHOWN_NAMES]) + ", …" * (files.files > SHOWN_NAMES)
        what = f"{many(files.files, 'file')} ({size(files.bytes)})" if files.bytes else many(files.files, "entry", "entries")
        said = f"{what}, {reason.value.partition(';')[0]}: {names}"
        lines.append(f"{'passed over':<12}{visible(said)[:200]}")
    return lines


def _left_out(tally: BuildTally) -> list[str]:
    """Return lines with the counts of rows left out, by reason, and with the first of these rows."""
    from peer.corpora.options import MOST_NAMED, LeftOut
    from protocol.formatting import visible

    lines = []
    if tally.cut:
        lines.append(f"cut         {tally.cut} chats that are longer than a row")
    for is_bad, heading in ((True, "bad"), (False, "left out")):
        counts = [
            f"{count} {reason.value}" + (" (--keep-repeated keeps them)" if reason is LeftOut.SAME_TEXT else "")
            for reason, count in sorted(tally.left_out.items())
            if reason.is_bad == is_bad
        ]
        if counts:
            lines.append(f"{heading:<12}{', '.join(counts)}")
            lines += [f"{'':<12}{visible(str(row))[:200]}" for row in sorted(tally.named[is_bad])[:MOST_NAMED]]
    return lines


SHOWN_CHARACTERS = 400


def run_show(args: argparse.Namespace) -> int:
    """Show a corpus."""
    from peer.corpora.folder import FinishedCorpus
    from protocol.formatting import visible

    corpus = FinishedCorpus(Path(args.folder))
    lines = _lines(corpus)
    for source, text in _samples(corpus, 1, held_out=False):
        lines += ["", f"{source}: {visible(text[:SHOWN_CHARACTERS])}{'…' * (len(text) > SHOWN_CHARACTERS)}"]
        break
    return print_result(args, _described(corpus), lines)


def run_verify(args: argparse.Namespace) -> int:
    """Check a corpus."""
    from peer.corpora.folder import FinishedCorpus
    from protocol.formatting import many

    corpus = FinishedCorpus(Path(args.folder))
    tokens = sum(split.tokens for _, _, split in corpus.splits)
    shows = sys.stderr.isatty() and not args.json
    corpus.verify(lambda done: print(f"\rverified {100 * done / tokens:3.0f} %", end="", file=sys.stderr) if shows else None)
    blocks = sum(corpus.manifest.blocks(split) for _, _, split in corpus.splits)
    fields = {"folder": args.folder, "digest": corpus.digest.hex(), "tokens": tokens, "blocks": blocks}
    line = f"{chr(13) * shows}{args.folder}: all {many(blocks, 'block')} with {many(tokens, 'token')} are as built"
    return print_result(args, fields, [line])


def run_sample(args: argparse.Namespace) -> int:
    """Print documents of each source."""
    from peer.console.streams import print_json
    from peer.corpora.folder import FinishedCorpus
    from protocol.formatting import visible

    for source, text in _samples(FinishedCorpus(Path(args.folder)), args.count, held_out=args.held_out):
        if args.json:
            print_json({"source": source, "text": text})
        else:
            print(f"--- {source}\n{visible(text)}")
    return ExitCode.OK


def _samples(corpus: FinishedCorpus, count: int, *, held_out: bool) -> Iterator[tuple[str, str]]:
    """Yield the source and the text of the first documents of each source."""
    from itertools import islice

    tokenizer = corpus.tokenizer()
    for source, which, split in corpus.splits:
        if (which == "held out") == held_out:
            for document in islice(corpus.documents(split), count):
                tokens = document.tokens
                if not any(corpus.manifest.tokenizer):  # the end token of bytes is not a character
                    tokens = tokens[tokens != corpus.manifest.end]
                yield source, tokenizer.decode(tokens.tolist())
