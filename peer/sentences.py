"""Events as a person reads them: a sentence, and its severity.

This module decides only words.  The log lines of a headless peer, the terminal interface and `peer leave` use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from protocol.events import events as ev
from protocol.events.status import CopiesStatus
from protocol.formatting import Naming, amount, attempted, clean, duration, many, number, of_fragment, short, size, to_go

STAGES = ("ready", "exchanging", "voting", "applying")
"""Phases of a round after training; a peer without a reason to be idle in them trains for the next round."""


MOST_CHARACTERS = 2000


def sentence(event: ev.Event, name: Naming = short) -> str:
    """Describe an event in one harmless line, whoever wrote the event; "" for events that are not worth a line."""
    return clean(_described(event, name), MOST_CHARACTERS)


def _described(event: ev.Event, name: Naming) -> str:
    match event:
        case ev.Started() | ev.Left() | ev.LinesLost():
            return _of_a_life(event)
        case ev.PhaseChanged(phase, why, detail):
            ahead = ", training ahead" if phase in STAGES and not why else ""
            return f"{phase}{ahead}: {clean(detail or why, 300)}" if detail or why else f"{phase}{ahead}"
        case ev.PeerJoined() | ev.PeerBanned() | ev.PeerEjected() | ev.PeerSuspected() | ev.PeerGone():
            return _of_a_peer(event, name)
        case ev.StrangersClosed(silent, crowded, busiest):
            where, _, relay = busiest.rpartition(" ")
            busiest = f"{where} {short(relay)}" if where else busiest
            return (
                f"closed {silent + crowded} connections from outside ({silent} that did not greet in time, "
                f"{crowded} for lack of room), most of them from {clean(busiest)}"
            )
        case ev.RoleChosen(role, reason):
            return f"role {clean(role)}: {clean(reason, 300)}"
        case ev.TrainerStarted(pid):
            return f"trainer started (process {pid})"
        case ev.TrainerStopped(reason):
            return f"trainer stopped: {clean(reason, 300)}"
        case ev.VersionPublished() | ev.VersionStarted() | ev.VersionComplete() | ev.VersionRefused():
            return _of_weights(event, name)
        case ev.TransferProgress() | ev.TransferEnded():
            return _of_a_transfer(event)
        case ev.RolloutsGenerated() | ev.BatchJudged() | ev.BatchDecided() | ev.RolloutsUsed() | ev.RolloutsCounted():
            return _of_rollouts(event, name)
        case ev.RolloutPeerSetAside() | ev.ValidatorSetAside() | ev.NothingLearned():
            return _of_rollouts(event, name)
        case ev.TaskSetOffered() | ev.TasksAmended() | ev.TaskSetFellOut():
            return _of_tasks(event, name)
        case ev.CheckpointWritten() | ev.StateLoaded() | ev.RolledBack() | ev.SecondHistory() | ev.Desynced():
            return _of_the_state(event, name)
        case ev.Dropped(peer, what, reason, times):
            again = f" ({times} times)" if times > 1 else ""
            return f"dropped a {clean(what)} from {name(peer)}{again}: {clean(reason, 200)}"
        case ev.HandlerFailed(peer, what, reason, times):
            again = f" ({times} times)" if times > 1 else ""
            return f"a {clean(what)} from {name(peer)} made its handler fail{again}; please report: {clean(reason, 200)}"
        case ev.NobodyAnswers(seconds, tried, check):
            return f"no peer of the invitation answers after {duration(seconds)}: {attempted(tried)}; {clean(check, 200)}"
        case ev.ReachabilityChanged("unknown"):
            return "it is not known now if others reach this peer"
        case ev.ReachabilityChanged(_, addresses):
            there = [address for address, verdict in addresses.items() if verdict == "reachable"]
            return f"others reach this peer at {', '.join(there)}" if there else "nobody reaches this peer"
        case ev.LinkChanged(peer, link):
            return f"{name(peer)} is connected: {clean(link)}"
        case ev.PortMapped(address, by):
            return f"the router opened a port by {clean(by)}: {clean(address)}" if address else "the router's port is closed"
        case ev.Notice(_, text):
            return clean(text, 1000)
        case _:
            return _of_a_round(event, name)


def _of_rollouts(event: ev.Event, name: Naming) -> str:
    match event:
        case ev.RolloutsGenerated(version, batch, _, rollouts, tokens, _, seconds):
            return f"version {version}, batch {batch}: {many(rollouts, 'rollout')} of {tokens} tokens in {duration(seconds)}"
        case ev.BatchJudged(author, version, batch, _, validator, accepted, rejected, _, reasons):
            why = f" ({', '.join(clean(reason) for reason in reasons)})" if reasons else ""
            judged = f"batch {batch} of {name(author)} at version {version}, judged by {name(validator)}"
            return f"{judged}: {accepted} rollouts accepted, {rejected} rejected{why}"
        case ev.BatchDecided(author, version, batch, _, verdict, reason, _, checked):
            why = f": {clean(reason)}" if reason else ""
            seen = ", which we verified ourselves" if checked else ""
            return f"batch {batch} of {name(author)} at version {version}{seen}, is {clean(verdict)}{why}"
        case ev.RolloutsUsed(round, batches, rollouts, reward, _, kl):
            mean = f", mean reward {number(reward)}" if reward is not None else ""
            far = f", {kl:.2g} nats from the reference" if kl is not None else ""
            what = f"{many(rollouts, 'rollout')} in {many(len(batches), 'batch', 'batches')}"
            if event.informative == 0:
                return f"round {round}: learned nothing from {what}: all answers to each problem had the same reward{mean}"
            return f"round {round}: learned from {what}{mean}{far}"
        case ev.NothingLearned(_, rounds, reward, prompt, text, expected):
            mean = f" (mean reward {number(reward)})" if reward is not None else ""
            wanted = f"; expected: {clean(expected, 200)}" if expected else ""
            remedy = "say in the prompts which form an answer has" if not reward else "take problems of another difficulty"
            return (
                f"nothing is learned: in {many(rounds, 'round')} all answers to each problem had the same reward{mean}; a "
                f"typical answer to »{clean(prompt, 200)}« is »{clean(text, 200)}«{wanted}; {remedy}, and try them with "
                "`peer tasks rate FILE --model FOLDER`"
            )
        case ev.RolloutsCounted(round, reward, batches, tokens, _, _, mine):
            mean = f", mean reward {number(reward)}" if reward is not None else ""
            ours = f"; {len(mine)} of them {'is' if len(mine) == 1 else 'are'} ours" if mine else ""
            what = f"{many(batches, 'batch', 'batches')} of rollouts, {amount(tokens)} tokens"
            return f"round {round}: the swarm learned from {what}{mean}{ours}"
        case ev.RolloutPeerSetAside(peer, reason):
            return f"rollouts of {name(peer)} are no longer used: {clean(reason, 200)}"
        case ev.ValidatorSetAside(peer, reason):
            return f"verdicts of {name(peer)} no longer count: {clean(reason, 200)}"
        case _:
            return ""


def _of_tasks(event: ev.Event, name: Naming) -> str:
    match event:
        case ev.TaskSetOffered(publisher, root, called, tasks, size_bytes):
            return (
                f"{name(publisher)} offers {many(tasks, 'task')} ({size(size_bytes)}), {clean(called, 64)}: set {root[:12]}"
            )
        case ev.TasksAmended(number, version, sets, percent):
            share = f", of which {percent} % of the problems are" if sets else ""
            return f"from version {version} on {len(sets)} sets of tasks are in force (amendment {number}){share}"
        case ev.TaskSetFellOut(root, called, version):
            return (
                f"the set of tasks {clean(called, 64)} ({root[:12]}) was dropped at version {version}, by the trainers' "
                f"counts"
            )
        case _:
            return ""


def _of_a_peer(event: ev.Event, name: Naming) -> str:
    match event:
        case ev.PeerJoined(peer, called):
            return f"{clean(called) or 'a peer'} ({short(peer)}) is here"
        case ev.PeerBanned(peer, reason):
            return f"{name(peer)} was disconnected and stays out for a while: {clean(reason)}"
        case ev.PeerEjected(peer, reason, evidence):
            return f"{name(peer)} is shut out for good: {clean(reason)} (proof {evidence[:16]})"
        case ev.PeerSuspected(peer, silent_s, disconnected):
            last = f"(last heard {duration(silent_s)} ago)"
            return (
                f"the connection to {name(peer)} broke {last}"
                if disconnected
                else (f"{name(peer)} has been silent for {duration(silent_s)}")
            )
        case ev.PeerGone(peer, goodbye):
            return f"{name(peer)} said goodbye and left" if goodbye else f"{name(peer)} is gone: it fell silent"
    return ""


def _of_weights(event: ev.Event, name: Naming) -> str:
    match event:
        case ev.VersionPublished(version, publisher, kind, size_bytes, patch_bytes):
            patch = f", a patch of {size(patch_bytes)}" if patch_bytes is not None else ""
            whole = ", available whole" if kind == "anchor" else ""
            return f"weights: {name(publisher)} published version {version} ({size(size_bytes)}{whole}{patch})"
        case ev.VersionStarted(version, size_bytes, files):
            return f"weights: fetching version {version}: {size(size_bytes)} in {files} {'file' if files == 1 else 'files'}"
        case ev.VersionComplete(version, weights, size_bytes, seconds):
            return f"weights: version {version} is on disk ({weights[:8]}, {size(size_bytes)}) after {duration(seconds)}"
        case ev.VersionRefused(version, reason):
            return f"weights: version {version} is not used: {clean(reason, 200)}"
    return ""


def _of_a_transfer(event: ev.Event) -> str:
    match event:
        case ev.TransferProgress():
            return f"fetching {coming(event)}"
        case ev.TransferEnded(what, number, _, fetched_bytes, seconds, complete):
            return (
                f"{'fetched' if complete else 'gave up'} {blob(what, number)}: {size(fetched_bytes)} in {duration(seconds)}"
            )
    return ""


def coming(told: ev.TransferProgress) -> str:
    """Describe a blob that is being fetched: its name, progress, speed and time left."""
    sources = f"{told.sources} {'peer' if told.sources == 1 else 'peers'}"
    left = f", {to_go(told.left_s)}" if told.left_s is not None else ""
    return (
        f"{blob(told.what, told.number)}: {told.done}/{told.total} chunks, "
        f"{size(told.down_bytes_per_s)}/s from {sources}{left}"
    )


def blob(what: str, number: int) -> str:
    """Return the name of a blob in words."""
    names = {
        "checkpoint": f"checkpoint after {number} round{'s' if number > 1 else ''}"
        if number
        else "the run's initial weights",
        "result": f"result of round {number}",
        "weights": f"version {number}, whole",
        "patch": f"version {number}, patch",
        "file": f"file {number + 1} of the run",
        "reference": f"reference weights, of round {number}",
        "blocks": f"blocks of shard {number + 1} of the corpus",
    }
    return names.get(what, f"{clean(what)} {number}")


def preferences_of(event: ev.ReadySent) -> str:
    """Describe how well the model told chosen answers from rejected ones; empty without preferences."""
    if event.margin is None or event.accuracy is None:
        return ""
    return f"margin {number(event.margin)}, {100 * event.accuracy:.0f} % of the preferences right"


BLOCK_ORIGINS = {
    "peer": "from peers",
    "seed": "from seeds",
    "mirror": "from mirrors",
    "disk": "from this disk",
    "copy": "to keep for others",
}


def blocks_by_origin(told: Mapping[str, int]) -> str:
    """Describe where the blocks of the run's corpora came from.  told: bytes by origin, as the status has them."""
    parts = [f"{size(told[origin])} {phrase}" for origin, phrase in BLOCK_ORIGINS.items() if told.get(origin)]
    return ", ".join(parts) or "none yet"


def copies(told: CopiesStatus, *, for_all: bool = False) -> str:
    """Describe the copies of the run's data.  for_all: True for readers at other peers."""
    if told.peers == 1 or not told.total_bytes:
        return f"{size(told.total_bytes)} of data, and no other peer to keep them"
    if told.answered == 1:
        return "no other peer has said yet what it has"
    at_others = (
        (told.here_only_bytes, "at this peer only"),
        (told.lone_bytes - told.here_only_bytes, "at one other peer only"),
    )
    lone = at_others if told.here_only_bytes and not for_all else ((told.lone_bytes, "at one peer only"),)
    places = (told.missing_bytes, "at no peer"), *lone
    parts = [f"{_percent(part, told.total_bytes)} {where}" for part, where in places if part > 0]
    beside = f", beside {many(told.mirrors, 'mirror')}" if told.mirrors else ""
    if parts:
        return f"{', '.join(parts)}, of {size(told.total_bytes)}{beside}"
    if told.short_bytes:
        share = _percent(told.total_bytes - told.short_bytes, told.total_bytes, down=True)
        return f"all at two peers or more, {share} at {told.wanted}{beside}"
    return f"all at {told.wanted} peers or more{beside}"


def _percent(part: float, whole: float, *, down: bool = False) -> str:
    """Return a share in percent; a share above 0 is at least 1 %, unless it is rounded down."""
    return f"{math.floor(100 * part / whole) if down else max(1, round(100 * part / whole))} %"


def chunk_map(cells: str, width: int) -> str:
    """Draw the map of a blob's chunks in at most `width` columns."""
    number, line = min(width, len(cells)), ""
    for column in range(number):
        part = set(cells[column * len(cells) // number : (column + 1) * len(cells) // number])
        line += "#" if part == {"#"} else "." if part <= {"."} else "+"
    return line


def _of_the_state(event: ev.Event, name: Naming) -> str:
    match event:
        case ev.CheckpointWritten(rounds, size_bytes):
            return f"checkpoint after {many(rounds, 'round')} is on disk ({size(size_bytes)})"
        case ev.RolledBack(to_round, abandoned, winner):
            which = f"round {to_round}" if abandoned == 1 else f"rounds {to_round} to {to_round + abandoned - 1}"
            lost = f"most voters do not stand on {which}, or nobody here has the results: computed anew"
            won = f"the branch of {name(winner)} won, and its rounds replace {which}"
            return f"went back {many(abandoned, 'round')}: {won if winner else lost}"
        case ev.StateLoaded(rounds):
            return f"loaded the state after {many(rounds, 'round')}"
        case ev.SecondHistory(round, ours, theirs, shown_by, signers):
            return (
                f"ALARM: {name(shown_by)} shows a second certified record of round {round} ({theirs[:8]}; we keep "
                f"{ours[:8]}): at least a third of the electors lied; {_listed(signers, name) or 'nobody'} signed both"
            )
        case ev.Desynced(round, mine, theirs):
            return f"state differs from the swarm's before round {round} ({mine[:8]}, not {theirs[:8]}); repairing"
    return ""


def _of_a_life(event: ev.Event) -> str:
    match event:
        case ev.Started(peer, called, run, run_name, version, pid, addresses, data_dir):
            named = f"{clean(run_name)} ({run[:12]})" if run_name else run[:12]
            where = f", listening on {clean(', '.join(addresses), 1000)}" if addresses else ""
            return (
                f"{clean(called)} {peer} in run {named}{where}; version {version}, process {pid}, "
                f"data in {clean(data_dir, 500)}"
            )
        case ev.Left(goodbye, heard_by, rounds, code, problem):
            said = (
                "said goodbye, but no peer was connected"
                if goodbye
                else ("without a goodbye" if code else "before it met any peer")
            )
            if heard_by:
                said = f"said goodbye to {heard_by} {'peer' if heard_by == 1 else 'peers'}"
            if rounds is None:
                return f"left: before it began; {clean(problem, 1000)}" if problem else "left: before it began"
            kept = f"left: {said}, {rounds} {'round' if rounds == 1 else 'rounds'} committed, state on disk"
            return f"{kept}; {clean(problem, 1000)}" if problem else kept
        case ev.LinesLost(lines, reason):
            return f"{lines} {'line is' if lines == 1 else 'lines are'} missing here: {reason}"
        case _:
            return ""


def _of_a_round(event: ev.Event, name: Naming) -> str:
    match event:
        case ev.ReadySent(round, tokens, steps, loss):
            pairs = f"; {preferences_of(event)}" if event.margin is not None else ""
            which = f"round {round}{of_fragment(event.fragment, event.fragments)}"
            return f"{which}: ready with {amount(tokens)} tokens in {many(steps, 'step')}, loss {number(loss)}{pairs}"
        case ev.RoundProposed(round, attempt, proposer, members, absent):
            without = f", without {_listed(absent, name)}" if absent else ""
            again = f" (attempt {attempt})" if attempt else ""
            return f"round {round}{again}: {name(proposer)} proposes {many(len(members), 'member')}{without}"
        case ev.ExchangeFinished(round, seconds, up_bytes, down_bytes):
            return f"round {round}: exchanged in {duration(seconds)} ({size(up_bytes)} up, {size(down_bytes)} down)"
        case ev.MemberLost(round, peer):
            return f"round {round}: {name(peer)} stopped delivering; averaging without it"
        case ev.MemberRegained(round, peer):
            return f"round {round}: {name(peer)} is heard again; waiting for it again"
        case ev.AuditDone(round, chunks, checked):
            missing = "" if checked == chunks else f" ({chunks - checked} could not be)"
            return f"round {round}: {checked} averages of others recomputed{missing}"
        case ev.RoundVoted(round, attempt, _):
            return f"round {round}: voted"
        case ev.RoundsConfirmed(confirmed, _):
            return f"{many(confirmed, 'provisional round')} confirmed by the peers that had been away: final now"
        case ev.RoundCommitted(round, _, members, tokens, loss, mine):
            part = "" if mine else ", without us"
            which = f"{fragment}," if (fragment := of_fragment(event.fragment, event.fragments)) else ""
            return (
                f"round {round}{which} committed: {many(len(members), 'member')}{part}, {amount(tokens)} tokens, "
                f"training loss {number(loss)}"
            )
        case ev.RunEnded(rounds, tokens, unit, total, _):
            goal = f"{amount(total)} tokens" if unit == "tokens" else many(total, "round")
            return (
                f"the run has ended: its total of {goal} is reached, after {many(rounds, 'round')} and {amount(tokens)} "
                "tokens; peers serve the final weights until they leave, and `peer export FOLDER` writes them"
            )
        case ev.RunExtended(round, unit, total):
            return f"the organiser has extended the run to {amount(total)} {clean(unit)}, from round {round} on"
        case ev.StateApplied(rounds, digest):
            return f"state after {many(rounds, 'round')}: {digest[:16]}"
        case ev.ComputeProgress(round, steps, total, loss, rate, left_s, ahead):
            what = f"round {round}{', ahead' if ahead else ''}"
            return f"{what}: step {steps} of {total}, loss {number(loss)}, {amount(rate)} tokens/s, {to_go(left_s)}"
        case ev.ExchangeProgress(round, done, total, waiting):
            waits = f", waiting for {_listed(waiting, name)}" if waiting else ""
            return f"round {round}: {done} of {total} chunks{waits}"
        case ev.EvalLoss(rounds, loss, by, members=members):
            source = f"measured by {name(by)}" if members == 1 else f"mean of {members} members"
            return f"held-out loss after {many(rounds, 'round')}: {number(loss)} ({source})"
        case ev.SamplesWritten(rounds, by, completions):
            texts = "; ".join(f"{clean(prompt, 200)}»{clean(text, 300)}" for prompt, text in completions.items())
            return f"samples after {many(rounds, 'round')}, by {name(by)}: {texts}"
        case ev.EvalProgress(rounds, done, total):
            return f"measuring the held-out loss after {many(rounds, 'round')}: {100 * done // max(1, total)} %"
        case ev.SyncProgress(done, total):
            return f"fetching records: {done} of {total}"
        case _:
            return ""


def level(event: ev.Event) -> str:
    """Return the severity: info, warning, debug or error."""
    if isinstance(event, ev.PROGRESS):
        return "debug"
    match event:
        case ev.Notice(given, _):
            return given
        case ev.TrainerStopped(reason) if reason == "the trainer was stopped":
            return "info"
        case (
            ev.TrainerStopped()
            | ev.MemberLost()
            | ev.RolledBack()
            | ev.Desynced()
            | ev.PeerSuspected()
            | ev.VersionRefused()
        ):
            return "warning"
        case ev.PeerBanned() | ev.PeerEjected() | ev.NobodyAnswers() | ev.LinesLost() | ev.HandlerFailed():
            return "warning"
        case ev.RolloutPeerSetAside() | ev.ValidatorSetAside() | ev.NothingLearned():
            return "warning"
        case ev.SecondHistory():
            return "error"
        case ev.Left(problem=problem) if problem:
            return "error"
        case ev.Dropped() | ev.RoundVoted() | ev.AuditDone() | ev.StateLoaded() | ev.TransferEnded():
            return "debug"
        case ev.SamplesWritten():  # the interface and the page have a place for them
            return "debug"
        case _:
            return "info"


def _listed(peers: Sequence[str], name: Naming) -> str:
    listed = ", ".join(name(peer) for peer in peers[:3])
    return listed + (f" and {len(peers) - 3} more" if len(peers) > 3 else "")
