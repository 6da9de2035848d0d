"""`peer run`: create a run, show one, and invite to one."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from peer.commands import Subparsers, add_command, add_group, option, seconds_of, whole_number
from peer.errors import ExitCode, PeerError, told_as

if TYPE_CHECKING:
    from collections.abc import Sequence

    from peer.joining.purpose import Speed
    from protocol.run.invitation import Anchor, Invitation
    from protocol.run.manifest import RunManifest, SignedManifest
    from protocol.wire.hashes import Hash
    from protocol.wire.identity import Identity, PeerId


def register(subparsers: Subparsers) -> None:
    """Describe the command line."""
    parser = add_command(subparsers, "run", "create a run, show one, invite to one (for organisers)", None)
    group = add_group(parser)

    create = add_command(
        group,
        "create",
        "check and sign a run file, and print the run's invitation",
        run_create,
        epilog="It keeps the signed manifest in the data directory.  The last line that it prints is the invitation.  By "
        "default a run admits by invitation; then this one admits up to 64 friends in 30 days: send it like a password.",
    )
    option(create, "file RUN.toml", "the run file; docs/reference/run-file.md lists its fields")
    option(create, "--out FILE", "also write the signed manifest to a file")
    _add_addresses(create)

    show = add_command(
        group,
        "show",
        "describe a run file, a manifest or an invitation",
        run_show,
        epilog="It prints a page: the organiser's words about the run, its model, needs, data, learning rate, end, votes "
        "and organiser, and a token's role, peer or uses, and expiry.  The peers of an invitation are asked for "
        "its manifest, for up to 20 s.",
    )
    option(show, "what WHAT", "a run file, a manifest, an invitation or a run ID (its first 8 digits)", nargs="+")
    option(show, "--all", "print every field with its meaning, as a run file; the description is its comments")

    invite = add_command(
        group,
        "invite",
        "print an invitation with a token",
        run_invite,
        epilog="The guest's `peer id` prints the guest's ID.  Send the guest the invitation that this command prints.",
    )
    option(invite, "what RUN", "a run ID (its first 8 digits) or a manifest (default: your run)", nargs="?")
    option(invite, "peer PEER_ID", "ID of the guest, the only peer that may use the invitation", nargs="?")
    option(invite, "--bearer", "admit anybody who has the invitation; keep it secret")
    option(
        invite, "--uses N", "number of peers that --bearer admits (default: 64, at most 4096)", type=whole_number(1, 4096)
    )
    option(
        invite,
        "--role",
        "role for which the token admits",
        choices=["trainer", "rollout", "validator", "seed"],
        default="trainer",
    )
    option(
        invite,
        "--expires TIME",
        "time until the token expires: 30m, 12h, 30d (default); members stay in the run",
        default="30d",
        type=seconds_of,
    )
    option(invite, "--until-round N", "the guest must become a member by round N", type=whole_number(0, 1 << 53))
    _add_addresses(invite)

    extend = add_command(
        group,
        "extend",
        "extend your run, even after its end",
        run_extend,
        epilog="Your peer must be running.  The new total takes effect with the next record.",
    )
    option(extend, "what RUN", "a run ID or its beginning (default: the running run)", nargs="?")
    total = extend.add_mutually_exclusive_group(required=True)
    option(total, "--tokens N", "the run's new total, if it counts tokens", type=whole_number(1, 1 << 53))
    option(total, "--rounds N", "the run's new total, if it counts rounds", type=whole_number(1, 1 << 53))


def run_create(args: argparse.Namespace) -> int:
    """Sign and keep a run; the last line printed is the invitation."""
    from peer.joining.run_word import check_run_file

    check_run_file(args.file)  # before the slow imports

    from peer.files import write_atomically
    from peer.joining.inviting import friends_line, token_for_friends
    from peer.joining.purpose import about_lines, adapter_words, purpose_lines, speed_here
    from peer.joining.run_source import create_run
    from peer.keyfile import load_or_create_identity
    from peer.resources.requirements import need_lines
    from protocol.formatting import amount
    from protocol.run.manifest import Admission
    from protocol.wire.identity import Identity, PeerId

    data = args.data_dir
    remarks: list[str] = []
    signed = create_run(Path(args.file), data, lambda what, about: remarks.append(f"{what:<12}{about}"))
    manifest = signed.manifest
    addresses, _, warnings = _addresses(args, signed.run, PeerId(manifest.organiser), data)
    if args.out:
        write_atomically(Path(args.out).absolute(), signed.raw)
    print(f"run         {signed.run.hex()}")
    parameters = ("parameters", f"{manifest.parameters} ({amount(manifest.parameters)}){adapter_words(manifest)}")
    purpose = purpose_lines(manifest, speed_here(manifest, data), me=manifest.organiser)
    for subject, said in [*about_lines(manifest), parameters, *need_lines(manifest), *purpose]:
        print(f"{subject:<12}{said}")
    for remark in remarks:
        print(remark)
    if stay := _stay_sentence(signed, data):
        print(stay)
    token, secret, line = None, None, "invitation"
    if manifest.admission is Admission.INVITE:
        now, key = time.time(), Identity.generate()
        token, secret = token_for_friends(load_or_create_identity(data), signed.run, key, now), key.seed
        line = f"{line:<12}{friends_line(now)}"
    print(line)
    print(_invitation(signed, addresses, token, secret))
    return _note([*_doubts(manifest), *warnings])


def _doubts(manifest: RunManifest) -> list[str]:
    """Return warnings about valid settings that the organiser of a run has probably not intended."""
    from peer.joining.purpose import beyond_capacity, endless, ends_early, often_read, unusual_data

    doubts = (
        unusual_data(manifest),
        often_read(manifest),
        ends_early(manifest),
        endless(manifest),
        beyond_capacity(manifest),
    )
    return [each for each in doubts if each]


def _note(notes: Sequence[str]) -> int:
    """Print notes on standard error, after the result to which they belong, and return the exit code of success."""
    sys.stdout.flush()
    for each in filter(None, notes):
        print(f"note: {each}", file=sys.stderr, flush=True)
    return ExitCode.OK


HOME_UPLOAD_BYTES_PER_S = 2.5e6
"""Upload rate of a home line, for an estimate before any line was measured: 20 Mbit/s."""


def _stay_sentence(signed: SignedManifest, data: Path) -> str:
    """Return a sentence for the organiser of a run with own data or an own model: how long no other peer has them.

    Empty in other runs.  A model that has mirrors, or that peers do not pass on, is not counted.
    """
    from peer.paths import CORPORA, run_dir
    from peer.settings.file import gather
    from protocol.corpora.copies import COPIES
    from protocol.corpora.manifest import SHARDS
    from protocol.formatting import duration, size

    links = run_dir(data, signed.run) / CORPORA
    shards = {path.resolve() for path in links.glob(f"*/{SHARDS}/*.shard")} if links.is_dir() else set()
    total, base = sum(path.stat().st_size for path in shards), signed.manifest.base
    total += base.size_bytes if base is not None and base.share and not base.mirrors else 0
    if not total or signed.manifest.data.is_local:
        return ""
    limit = gather({}).now.max_up
    rate = limit or HOME_UPLOAD_BYTES_PER_S
    takes, at = duration((COPIES - 1) * total / rate), f"{8 * rate / 1e6:.3g} Mbit/s" + (" (max_up)" if limit else "")
    return (
        f"Leave this computer on until the copies are there: nobody else has these {size(total)} of data yet.  Once "
        f"{COPIES - 1} others have joined, it takes about {takes} at an upload of {at}; `peer status` says how far it is."
    )


def run_show(args: argparse.Namespace) -> int:
    """Print a page about a run, or with --all every field as a run file, with the page as comments."""
    from peer.joining.run_word import check_word

    data, word = args.data_dir, " ".join(args.what)
    check_word(word, data)  # before the slow imports

    from peer.joining.run_source import checked_run, find_run, stored_manifest, unbuilt
    from protocol.run.invitation import Invitation
    from protocol.run.run_file import dump
    from protocol.wire.hashes import Hash

    if (sketch := unbuilt(word, data)) is not None:
        _print_rows(_needs(sketch, whole=args.all), args)
        build = f"`peer run create {word}` builds its corpora, and prints the rest"
        _print_rows([("data", f"not read yet: {build}")], args)
        print(Path(word).read_text(encoding="utf-8") if args.all else MORE, end="")
        return ExitCode.OK
    if Path(word).suffix == ".toml" and Path(word).is_file():
        signed, _ = checked_run(Path(word), data, lambda what, about: _print_rows([(what, about)], args))
    elif isinstance(found := find_run(word, data), Invitation):
        _print_rows(_invitation_rows(found), args)
        stored = stored_manifest(Hash(found.run), data)
        if stored is None:
            from peer.joining.lobby import ask_for_manifest

            _print_rows([("asking", "the peers above for the run's manifest, which is not on this computer")], args)
            stored = ask_for_manifest(found)
        signed = stored
    else:
        signed = found
    _print_rows(_manifest_rows(signed, data, whole=args.all), args)
    print(dump(signed.manifest) if args.all else MORE, end="")
    return _note(_doubts(signed.manifest))


MORE = "`--all` prints every field, as a run file.\n"
LABEL = 12
"""Columns of a subject on the page about a run."""
LEAST_WIDTH = 40


def _print_rows(rows: Sequence[tuple[str, str]], args: argparse.Namespace) -> None:
    """Print subjects with statements: whole in comments or for a program, else wrapped to the width of the terminal."""
    from peer.formatting import wrapped

    width = max(LEAST_WIDTH, shutil.get_terminal_size().columns - 1) if sys.stdout.isatty() else 0
    for subject, said in rows:
        if args.all:
            print(f"# {subject:<{LABEL}}{said}")
            continue
        for place, line in enumerate(wrapped(said, width - LABEL) if width else [said]):
            print(f"{'' if place else subject:<{LABEL}}{line}")
    sys.stdout.flush()


def run_extend(args: argparse.Namespace) -> int:
    """Have the organiser's running peer sign a larger total."""
    from peer.control.client import ControlClient, ControlError

    client = ControlClient(args.data_dir)
    unit, total = ("tokens", args.tokens) if args.tokens is not None else ("rounds", args.rounds)
    status = client.status()
    if args.what and not status.run.startswith(args.what):
        raise PeerError(
            f"your peer takes part in run {status.run[:12]}, not in {args.what[:12]}; join that run to extend it",
            ExitCode.INPUT,
        )
    with told_as(ExitCode.INPUT, ControlError):
        done = client.request("extend-run", unit=unit, total=total)
    print(f"run         {status.run}")
    print(f"until       {done['total']} {unit}, once the next record carries it; until then: {done['before']}")
    print(
        "If the run has ended or its rate is coming down, the rate warms up again, stays constant, and comes down at "
        "the end of the extension."
    )
    return ExitCode.OK


def run_invite(args: argparse.Namespace) -> int:
    """Print an invitation with a token that this data directory's identity signs."""
    from peer.joining.run_word import PEER_ID
    from peer.keyfile import load_identity
    from protocol.run.manifest import Admission
    from protocol.wire.identity import Identity, PeerId

    data = args.data_dir
    word, guest = args.what, args.peer
    if guest is None and word is not None and PEER_ID.fullmatch(word):
        word, guest = None, word  # either argument may be missing
    identity = load_identity(data)
    found = _run_to_invite_to(word, data, identity)
    if identity is None or identity.peer_id != found.manifest.organiser:
        raise PeerError(
            f"only the organiser {found.manifest.organiser} can invite; use its data directory with --data-dir",
            ExitCode.IDENTITY,
        )
    token, key, untaken = None, None, ""
    if found.manifest.admission is Admission.INVITE:
        key = Identity.generate() if args.bearer else None
        token = _token(args, identity, found.run, PeerId(guest) if guest is not None else None, key)
    else:
        admits = "everybody" if found.manifest.admission is Admission.OPEN else "the peers of its list"
        untaken = f"the run admits {admits}, so the invitation has no token"
    addresses, anchor, warnings = _addresses(args, found.run, identity.peer_id, data)
    print(_invitation(found, addresses, token, key.seed if key is not None else None, anchor))
    return _note([untaken, *warnings])


def _run_to_invite_to(word: str | None, data: Path, identity: Identity | None) -> SignedManifest:
    """Return the run that `word` names, else the only run with admission by token that this identity organised."""
    from peer.joining.run_source import find_run, organised_runs
    from protocol.run.invitation import Invitation
    from protocol.run.manifest import Admission

    if word is not None:
        found = find_run(word, data)
        if isinstance(found, Invitation):
            raise PeerError(
                "this is an invitation; give the ID or the manifest of your run, to print another invitation", ExitCode.INPUT
            )
        return found
    runs = organised_runs(data, identity.peer_id) if identity is not None else []
    runs = [run for run in runs if run.manifest.admission is Admission.INVITE]
    if not runs:
        raise PeerError(
            f"no run of yours in {data} admits by invitation; create one with `peer run create RUN.toml`, or name the run",
            ExitCode.USAGE,
        )
    if len(runs) > 1:
        known = ", ".join(f"{run.run.hex()[:12]} ({run.manifest.name})" for run in runs[:8])
        raise PeerError(
            f"you have created several runs: {known}; name one, for example `peer run invite {runs[0].run.hex()[:12]}`",
            ExitCode.USAGE,
        )
    return runs[0]


def _token(args: argparse.Namespace, organiser: Identity, run: Hash, guest: PeerId | None, key: Identity | None) -> bytes:
    """Return a token for the guest, or for the holders of `key`; exactly one of the two is given."""
    from protocol.run.admission import DEFAULT_USES, bearer_token, bound_token
    from protocol.wire.canonical import Malformed
    from protocol.wire.presence import Role

    role, expires = Role(args.role), int(time.time()) + args.expires
    if args.uses is not None and key is None:
        raise PeerError("--uses is allowed only with --bearer; add --bearer, or remove --uses", ExitCode.USAGE)
    if guest is not None and key is not None:
        raise PeerError("--bearer admits anybody; remove it, or the guest's ID", ExitCode.USAGE)
    if guest is None and key is None:
        raise PeerError(
            "the guest is not named; add the ID that the guest's `peer id` prints, or add --bearer to admit anybody who has "
            "the invitation",
            ExitCode.USAGE,
        )
    if key is not None:
        uses = args.uses or DEFAULT_USES
        return bearer_token(organiser, run, key, role=role, expires=expires, until_round=args.until_round, uses=uses)
    assert guest is not None
    try:
        return bound_token(organiser, run, guest, role=role, expires=expires, until_round=args.until_round)
    except Malformed as error:
        raise PeerError(f"{guest[:80]}: {error}; the guest's `peer id` prints it", ExitCode.INPUT) from error


def _add_addresses(parser: argparse.ArgumentParser) -> None:
    option(
        parser,
        "--address ADDR",
        "address at which guests find a first peer, as HOST[:PORT] or a multiaddr; may be repeated (default: where "
        "others reached your peer)",
        action="append",
        default=[],
    )
    port = whole_number(1, 65_535)
    option(parser, "--port PORT", "name this computer's addresses with this port instead", type=port)


def _addresses(args: argparse.Namespace, run: Hash, peer: PeerId, data: Path) -> tuple[list[str], Anchor | None, list[str]]:
    """Return the addresses and the anchor for an invitation, and warnings, such as that nobody has reached them."""
    from peer.addresses import local_remark
    from peer.joining.inviting import find_addresses, find_anchor
    from peer.joining.run_source import DEFAULT_PORT, dialable

    if args.address or args.port:
        addresses, anchor, remark = dialable(args.address, peer, args.port or DEFAULT_PORT), find_anchor(run, data), ""
    else:
        found = find_addresses(run, peer, data)
        addresses, anchor, remark = found.addresses, found.anchor, found.remark
    return addresses, anchor, [remark, local_remark(addresses)]


def _invitation(
    signed: SignedManifest,
    addresses: list[str],
    token: bytes | None,
    secret: bytes | None = None,
    anchor: Anchor | None = None,
) -> str:
    """Return the invitation as text; an address that cannot be part of one raises PeerError."""
    from protocol.run.invitation import make_invitation
    from protocol.wire.identity import PeerId

    try:
        return make_invitation(signed.run, PeerId(signed.manifest.organiser), addresses, token, secret, anchor)
    except ValueError as error:
        raise PeerError(
            "an address is too long or has an invalid character, or there are more than 16 addresses; check --address",
            ExitCode.INPUT,
        ) from error


def _manifest_rows(signed: SignedManifest, data: Path, *, whole: bool) -> list[tuple[str, str]]:
    """Return the facts of a run for a person, as pairs of subject and statement.

    whole: include the needs of every kind of peer.
    """
    from peer.joining.purpose import purpose_lines, speed_here
    from peer.keyfile import load_identity

    manifest, identity = signed.manifest, load_identity(data)
    speed, now = _as_it_runs(signed.run, data)
    speed = speed or speed_here(manifest, data)
    purpose = purpose_lines(manifest, speed, me=identity.peer_id if identity is not None else "")
    return [("run", signed.run.hex()), *_needs(manifest, whole=whole), *purpose, *now]


def _needs(manifest: RunManifest, *, whole: bool) -> list[tuple[str, str]]:
    from peer.joining.purpose import about_lines, adapter_words
    from peer.resources.requirements import need_lines
    from protocol.formatting import amount, many

    trained = f"{manifest.parameters} parameters ({amount(manifest.parameters)}){adapter_words(manifest)}"
    model = f"{trained}, {many(manifest.chunks, 'chunk')} a round"
    round = f"{amount(manifest.counted_per_round)} tokens of each member in a round"
    return [*about_lines(manifest), ("model", f"{model}; {round}"), *need_lines(manifest, whole=whole)]


def _as_it_runs(run: Hash, data: Path) -> tuple[Speed | None, list[tuple[str, str]]]:
    """Return the speed of the run's last round, and rows about its progress and the copies of its data.

    Both are empty unless the peer of this data directory takes part in it.
    """
    from peer.control.client import running_status
    from peer.formatting import copies, goal_line
    from peer.joining.purpose import Speed

    status = running_status(data, run)
    if status is None or not status.goal_total:
        return None, []
    rate = status.run_tokens_per_s
    speed = Speed(rate, "measured in the last round, all members together") if rate else None
    rows = [("now", goal_line(status))]
    if status.copies is not None:
        rows.append(("copies", copies(status.copies)))
    return speed, rows


def _invitation_rows(invitation: Invitation) -> list[tuple[str, str]]:
    from peer.joining.inviting import describe_anchor, describe_token

    token = describe_token(invitation, time.time())
    return [
        ("invites", f"to run {invitation.run.hex()}, {describe_anchor(invitation)}"),
        ("signed by", invitation.organiser),
        *(("first peer", address) for address in invitation.addresses),
        *(("" if place else "token", line) for place, line in enumerate(token)),
    ]
