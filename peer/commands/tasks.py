"""`peer tasks`: imports and rates tasks; lists, offers, admits and removes sets of tasks from the crowd.

`peer tasks import` writes a file of tasks from a published data set. Before a run or an offer, `peer tasks rate` measures
how often a model solves the tasks of a file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.commands import Subparsers, add_command, option, whole_number
from peer.console.asking import ask, show
from peer.errors import ExitCode, PeerError

if TYPE_CHECKING:
    from peer.tasks.checking import Checked
    from peer.tasks.task_import import ImportedTasks

FETCH_TIMEOUT_S = 300.0
_count = whole_number(1, 1 << 20)
SHOWN = 5
"""Number of tasks whose prompts `peer tasks show` prints."""
KINDS = {
    "ExactAnswer": "exact answers",
    "NumericAnswer": "numbers",
    "MathsAnswer": "mathematics (peers need the extra rl)",
    "CodeTests": "programs (peers need the sandbox)",
}


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(
        subparsers,
        "tasks",
        "import and rate tasks; show, offer, admit and remove sets of tasks from the crowd",
        run_list,
        epilog="For runs with rollouts: anybody can offer a set; the organiser admits it; sets that teach nothing fall out.",
    )
    parser.set_defaults(json=False)
    group = parser.add_subparsers(title="commands", metavar="COMMAND")
    add_command(group, "list", "list the admitted and offered sets with their counts", run_list, json=True)
    publish = add_command(
        group,
        "publish",
        "check a file of tasks and offer it to the run",
        run_publish,
        epilog="The peer must be running; it serves the file until the other peers have it.",
    )
    option(publish, "source FILE", "JSON lines, plain or compressed by zstd (docs/guides/environments.md)")
    option(publish, "--name NAME", "name that people see, up to 64 plain characters (default: the file's name)")
    show = add_command(group, "show", "fetch a set that is offered, check it, and show some of its tasks", run_show)
    option(show, "id ID", "the beginning of the set's ID, 6 digits or more")
    admit = add_command(
        group,
        "admit",
        "as the organiser: fetch and check a set, and admit its tasks to the run",
        run_admit,
        epilog="It takes effect for everybody at the version whose record has the signed amendment.",
    )
    option(admit, "id ID", "the beginning of the set's ID, 6 digits or more")
    option(
        admit,
        "--percent P",
        "percentage of all problems that come from the sets (1 to 90; default: unchanged, 50 at first)",
        type=whole_number(1, 90),
    )
    remove = add_command(group, "remove", "as the organiser: stop using the problems of a set", run_remove)
    option(remove, "id ID", "the beginning of the set's ID, 6 digits or more")
    importing = add_command(
        group,
        "import",
        "write a file of tasks from a data set: Parquet, JSON, a table, a folder of these, or hf:OWNER/NAME",
        run_import,
        epilog="Reads the layouts of SYNTHETIC-1, NuminaMath-1.5, MATH and GSM8K.  Rows without an answer that can be "
        "checked are left out, and counted by the reason.  No peer has to run.",
    )
    option(importing, "source INPUT", "file, folder, or hf:OWNER/NAME[:CONFIG][@SPLIT]")
    option(importing, "--out FILE", "a new file for the tasks", required=True)
    option(importing, "--most N", "maximum number of tasks (default: as many as fit into 64 MiB)", type=_count)
    option(importing, "--every N", "take every N-th usable row, for a smaller sample (1)", type=_count, default=1)
    option(importing, "--rows N", "rows that are read of each file (default: all)", type=whole_number(1, 1 << 23))
    option(importing, "--longest BYTES", "longest prompt that is taken (65536)", type=whole_number(1, 64 << 10))
    option(importing, "--request TEXT", "sentence added to each prompt without a request for a form of the answer")
    rate = add_command(
        group,
        "rate",
        "let a model solve the tasks of a file, and write the tasks with their solve rates",
        run_rate,
        epilog="Tasks with a solve_rate outside a run's min_solve_rate and max_solve_rate are left out of it.  No peer has "
        "to run.  After an interruption, the same command continues where it stopped.",
    )
    option(rate, "source FILE", "JSON lines (docs/guides/environments.md)", nargs="?")
    option(
        rate,
        "--environment NAME",
        'instead of a file, tasks of an environment as run files name it, "add(digits=3)"; nothing is written',
    )
    option(rate, "--problems N", "number of problems, spread over the --environment (64)", type=_count, default=64)
    option(rate, "--model FOLDER", "folder of the model, as `peer export` or transformers write it", required=True)
    option(rate, "--samples N", "number of answers to each task (8)", type=_count, default=8)
    option(rate, "--out FILE", "a new file for the result (default: FILE with .rated in its name)")
    option(
        rate,
        "--run RUN",
        "a run file, manifest or run ID: answers take its length, temperature, template and end tokens",
        dest="what",
    )
    option(rate, "--max-tokens N", "maximum length of an answer (default: the run's, else 1024)", type=_count)
    option(rate, "--temperature T", "temperature of sampling (default: the run's, else 1)", type=float)
    option(
        rate,
        "--template",
        "layout of prompts (default: the run's, else as in a run that begins with FOLDER)",
        choices=["raw", "plain", "chatml", "llama3"],
    )
    option(rate, "--at-once N", "number of answers generated at once (32); fewer take less memory", type=_count, default=32)
    option(
        rate,
        "--device",
        "device to compute on; auto uses a GPU if there is one",
        choices=["auto", "cpu", "cuda"],
        default="auto",
    )


def run_list(args: argparse.Namespace) -> int:
    """Print the sets; exit code 5 when no peer runs here."""
    return show(args, "tasks", describe)


def run_rate(args: argparse.Namespace) -> int:
    """Measure the tasks of a file, or some of an environment; rates measured for a file survive an interruption."""
    from peer.joining.run_source import named_run
    from peer.tasks.checking import check_file_name
    from peer.tasks.rating import Answering, AsInRun, Sampling, measure, survey

    if (args.source is None) == (args.environment is None):
        raise PeerError("name either a file of tasks or an --environment", ExitCode.USAGE)
    run = AsInRun() if args.what is None else AsInRun.of(named_run(args.what, args.data_dir).manifest)
    temperature = run.temperature if args.temperature is None else args.temperature
    sampling = Sampling(args.samples, args.max_tokens or run.max_tokens, temperature, args.at_once)
    how = Answering(Path(args.model).absolute(), sampling, args.template or run.template, run.ends, args.device)
    source = Path(args.source or "").absolute()
    target = Path(args.out).absolute() if args.out else source.with_name(f"{source.stem}.rated{source.suffix}")
    if args.source is not None:
        check_file_name(target)
    progress = _Progress()
    try:
        if args.environment is not None:
            done = survey(args.environment, args.problems, how, progress.say)
        else:
            done = measure(source, target, how, progress.say)
    except KeyboardInterrupt:
        kept = "; the same command continues there" if args.source else ", and nothing is kept"
        print(f"\npeer: {progress.done} of {progress.total} tasks are measured{kept}", file=sys.stderr)
        return ExitCode.INTERRUPTED
    print(f"tasks       {len(done.rates)}, {args.samples} answers to each")
    print("\n".join(done.told(run.bounds)))
    if args.source is not None:
        print(f"file        {target}")
        print(f'In a run file beside it: environment = \'jsonl(path="{target.name}", digest="{done.digest}")\'')
    return ExitCode.OK


def run_import(args: argparse.Namespace) -> int:
    """Write the tasks of a data set to a file, and print their kinds, and what was left out."""
    from peer.corpora.inputs import HUB
    from peer.tasks.checking import check_file_name
    from peer.tasks.task_import import ImportOptions, import_tasks
    from protocol.formatting import size

    source = args.source if args.source.startswith(HUB) else Path(args.source).absolute()
    target = Path(args.out).absolute()
    if target.exists() or not target.parent.is_dir():
        raise PeerError(f"{target} exists, or its folder is missing; give another --out", ExitCode.INPUT)
    check_file_name(target)
    given = {"most": args.most, "longest": args.longest, "request": args.request}
    options = ImportOptions(
        rows=args.rows, every=args.every, **{name: value for name, value in given.items() if value is not None}
    )
    progress = _ImportProgress()
    done = import_tasks(source, target, options, progress.say)
    print(f"tasks       {done.tasks}: {_kinds(done.kinds)}")
    print(f"left out    {done.told()}")
    if done.is_full:
        print("not read    the rest of the input: the file is full; `--every N` takes a sample of all rows")
    print(f"file        {target}, {size(done.size_bytes)}")
    print(f'In a run file beside it: environment = \'jsonl(path="{target.name}", digest="{done.digest}")\'')
    return ExitCode.OK


class _ImportProgress:
    """Report of an import: one line on a terminal, otherwise a line for each tenth of the input, or each 100 000 rows."""

    def __init__(self) -> None:
        self._told = 0

    def say(self, done: ImportedTasks) -> None:
        """Report progress as `peer.tasks.task_import.OnImport` describes."""
        share = "" if done.share is None else f"{done.share:.0%}, "
        text = f"{share}{done.rows} rows read, {done.tasks} tasks"
        if sys.stderr.isatty():
            print(f"\r{text}", end="\n" if done.share == 1 else "", file=sys.stderr, flush=True)
        elif (step := done.rows // 100_000 if done.share is None else int(10 * done.share)) > self._told:
            self._told = step
            print(text, file=sys.stderr, flush=True)


class _Progress:
    """Report of progress: one line on a terminal, otherwise a line for each tenth."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self._told = -1

    def say(self, done: int, total: int) -> None:
        """Report progress as `peer.tasks.rating.OnProgress` describes."""
        self.done, self.total = done, total
        if sys.stderr.isatty():
            print(f"\r{done} of {total} tasks", end="\n" if done == total else "", file=sys.stderr, flush=True)
        elif (tenth := 10 * done // total) > self._told:
            self._told = tenth
            print(f"{done} of {total} tasks", file=sys.stderr, flush=True)


def run_publish(args: argparse.Namespace) -> int:
    """Check the file, hand it to the running peer, and print the set's ID."""
    from peer.joining.run_source import chosen_run
    from peer.tasks.checking import prepared
    from protocol.formatting import size

    folder, run = args.data_dir, ask(args, "tasks")["run"]
    source = Path(args.source).absolute()
    name = args.name if args.name is not None else source.name[:64]
    with prepared(chosen_run(run, folder), source, folder) as ready:
        done = ask(args, "publish-tasks", file=ready.file, name=name, count=len(ready.tasks))
    print(f"set         {done['id']}")
    print(f"name        {done['name']}")
    print(f"tasks       {ready.told}: {_kinds(ready.kinds)}")
    print(f"size        {size(done['size_bytes'])}")
    print("The organiser admits it with `peer tasks admit " + done["id"][:12] + "`; keep this peer running until then.")
    return ExitCode.OK


def run_show(args: argparse.Namespace) -> int:
    """Fetch the set and check it; print its kinds, its file, and the prompts of its first tasks."""
    from protocol.formatting import clean

    fetched, checked = _fetched(args)
    print(f"set         {fetched['id']}")
    print(f"tasks       {checked.told}: {_kinds(checked.kinds)}")
    print(f"file        {fetched['path']}")
    for task in checked.tasks[:SHOWN]:
        print(f"task        {clean(task.problem_id, 40)}: {clean(task.prompt, 200)}")
    return ExitCode.OK


def run_admit(args: argparse.Namespace) -> int:
    """Fetch the set, check it as its publisher should have, and sign the amendment."""
    fetched, checked = _fetched(args)
    found = {"id": fetched["id"], "percent": args.percent, "count": len(checked.tasks)}
    done = ask(args, "admit-tasks", timeout_s=FETCH_TIMEOUT_S, **found)
    print(f"admitted    {fetched['id']}")
    print(f"tasks       {checked.told}: {_kinds(checked.kinds)}")
    return _say_amended(done)


def _fetched(args: argparse.Namespace) -> tuple[dict[str, Any], Checked]:
    """Return the running peer's answer about a set that it fetched, and the checked content of the file."""
    from peer.joining.run_source import chosen_run
    from peer.tasks.checking import check

    folder, run = args.data_dir, ask(args, "tasks")["run"]
    fetched = ask(args, "fetch-tasks", timeout_s=FETCH_TIMEOUT_S, id=args.id)
    return fetched, check(chosen_run(run, folder), Path(fetched["path"]), folder)


def run_remove(args: argparse.Namespace) -> int:
    """Sign an amendment that omits the set."""
    return _say_amended(ask(args, "remove-tasks", id=args.id))


def _say_amended(done: dict[str, Any]) -> int:
    """Describe the amendment that was signed, and return the exit code of success."""
    from protocol.formatting import many

    print(f"amendment   {done['amendment']}: {many(len(done['sets']), 'set')}, {done['percent']} % of the problems")
    print("It takes effect at the version whose record has it; `peer tasks list` shows when.")
    return ExitCode.OK


def _kinds(kinds: dict[str, int]) -> str:
    return ", ".join(f"{count} {KINDS.get(kind, kind)}" for kind, count in sorted(kinds.items()))


def describe(status: dict[str, Any]) -> list[str]:
    """Return the sets as lines for a person."""
    from peer.formatting import table
    from protocol.formatting import clean, short, size

    head = f"amendment {status['amendment']}" if status["amendment"] else "no set was admitted yet"
    lines = [f"run     {status['run']}", f"tasks   {head}"]
    if status["amendment"]:
        lines[-1] += f": {status['percent']} % of the problems come from the admitted sets"
    if status["pending"] is not None:
        lines.append(f"coming  amendment {status['pending']}, which no record has yet")

    def share(part: int, whole: int) -> str:
        return f"{part / whole:.0%} of {whole}" if whole else "-"

    rows = [("ID", "TASKS", "SIZE", "BY", "SOLVED", "AGREED", "STATE")]
    for each in status["sets"]:
        state = each["state"] + ("" if each["here"] or each["state"] == "offered" else ", not here yet")
        why = each["unusable"] or each["fault"]
        rows.append(
            (
                each["id"][:12],
                str(each["tasks"]),
                size(each["size_bytes"]),
                short(each["publisher"]),
                share(each["solved"], each["attempts"]),
                share(each["agreeing"], each["verdicts"]),
                f"{state}: {clean(each['name'], 64)}{f' ({clean(why, 200)})' if why else ''}",
            )
        )
    return lines + (table(rows, numbers=(1, 2, 4, 5)) if status["sets"] else [])
