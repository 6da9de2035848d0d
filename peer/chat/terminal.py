"""Talk in a terminal: reads texts and commands, and prints answers while their tokens come; or one answer for a pipe."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from peer.chat.conversation import Conversation, StreamedText, shown
from peer.chat.model import AnswerCores, ChatModel, ChatSource, OpenedModel
from peer.errors import ExitCode, PeerError
from peer.files import write_atomically
from protocol.formatting import many, visible

MAX_TEXT_BYTES = 1 << 20
"""Largest text that is read from a pipe."""
MAX_TEMPERATURE = 10.0
STOPPED, LENGTH, END = "stopped", "length", "end token"
"""Reasons for the end of an answer."""


class ChatAnswer(NamedTuple):
    """Answer to one text.  first_s: seconds until its first token.  seconds: duration of the whole answer.

    dropped: number of turns that the model no longer read.
    """

    text: str
    tokens: int
    ended: str
    dropped: int
    first_s: float
    seconds: float


class ChatSession:
    """Conversation with the model of a source.  temperature: 0 takes the most probable token."""

    def __init__(self, source: ChatSource, device: str, temperature: float, most: int) -> None:
        """Load the model.  Raises `PeerError`.

        most: tokens of an answer; it has at most half of what the model reads.
        """
        self.temperature = temperature
        self._source, cores = source, AnswerCores()
        with source.opened() as opened:
            self.model = ChatModel(opened.weights, device, cores)
            self.opened: OpenedModel = opened
        form, self.most = opened.form, min(most, self.model.length // 2)
        self.conversation = Conversation(form.tokenizer, self.model.length - self.most, converses=form.converses)
        self._tokenizer = form.tokenizer

    def take_newest(self) -> None:
        """Answer with the newest state from now on; the conversation continues.  Raises `PeerError`."""
        with self._source.opened() as opened:
            deque(opened.weights.values(), maxlen=0)  # a damaged file must not replace a part of the weights
            self.model.load(opened.weights)
            self.opened = opened

    def answer(
        self, question: str, show: Callable[[str], None], is_stopped: Callable[[], bool] = lambda: False
    ) -> ChatAnswer:
        """Answer a question, and add both to the conversation.

        show: called with each piece of the answer's text.  Raises ValueError with one sentence for a question that cannot be
        asked.
        """
        prompt, dropped = self.conversation.prompt(question)
        text, tokens = StreamedText(self._tokenizer), list[int]()
        ended, begun, first_s = LENGTH, time.monotonic(), math.nan
        with closing(self.model.answer(prompt, self.most, self.temperature, self._tokenizer.ends)) as pieces:
            for piece in pieces:
                first_s = first_s if tokens or not piece else time.monotonic() - begun
                tokens += piece
                if piece and piece[-1] in self._tokenizer.ends:
                    ended = END
                show(text.add([token for token in piece if token not in self._tokenizer.ends]))
                if ended is LENGTH and len(tokens) < self.most and is_stopped():
                    ended = STOPPED
                    break
        show(text.end())
        self.conversation.add(question, tokens)
        said = self.conversation.turns[-1].answer
        return ChatAnswer(said, len(tokens), ended, dropped, first_s, time.monotonic() - begun)


# ------------------------------------------------------------------------------------------------------------------------
# One answer, to a text from a pipe.


def answer_once(chat: ChatSession, text: str, *, as_json: bool) -> int:
    """Print the answer to a text on standard output: its text, or one JSON object.  Raises `PeerError`."""
    if not as_json:
        print(f"peer: {_greeting(chat)}", file=sys.stderr)
    try:
        answer = chat.answer(text, (lambda piece: None) if as_json else _show)
    except ValueError as error:
        raise PeerError(str(error), ExitCode.INPUT) from error
    if as_json:
        print(json.dumps(described(chat, answer)))
    else:
        print()
    return ExitCode.OK


def described(chat: ChatSession, answer: ChatAnswer) -> dict[str, Any]:
    """Return an answer as JSON values."""
    later = answer.seconds - answer.first_s
    return {
        **chat.opened.described,
        "answer": answer.text,
        "ended": answer.ended,
        "tokens": answer.tokens,
        "first_token_s": round(answer.first_s, 4),
        "tokens_per_s": round((answer.tokens - 1) / later, 1) if answer.tokens > 1 and later > 0 else None,
    }


def read_text() -> str:
    """Return the text of standard input without line feeds at its end.  Raises `PeerError`."""
    data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise PeerError(f"the text has more than {MAX_TEXT_BYTES >> 20} MiB; shorten it", ExitCode.INPUT)
    try:
        return data.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise PeerError("the text is not UTF-8; convert it to UTF-8", ExitCode.INPUT) from error


def _show(piece: str) -> None:
    print(shown(piece), end="", flush=True)


def _greeting(chat: ChatSession) -> str:
    does = "" if chat.conversation.converses else "; it completes texts"
    remark = f"; {chat.opened.form.remark}" if chat.opened.form.remark else does
    return f"{chat.opened.sentence}, on the {chat.model.device}{remark}"


# ------------------------------------------------------------------------------------------------------------------------
# Loop in a terminal.


HELP = """\
  /reset      forget what was said
  /newest     take the newest state of the run, or read the folder again
  /temp X     set the temperature: 0 takes the most probable token, 1 draws as learned
  /save FILE  write the conversation to a new file, as a chat that a run can learn from
  /help       show these commands
  /quit       leave; Ctrl-C and Ctrl-D also leave"""


class ChatTerminal:
    """Loop that reads texts and commands until the person leaves."""

    def __init__(self, chat: ChatSession, ask: Callable[[str], str] = input) -> None:
        self._chat, self._ask = chat, ask

    def run(self) -> int:
        """Talk until the person leaves."""
        print(f"{_greeting(self._chat)}.\n/help shows the commands; Ctrl-C stops an answer.")
        while True:
            try:
                text = self._ask("> ")
            except (EOFError, KeyboardInterrupt):
                print()
                break
            except UnicodeDecodeError:
                _note("the text is not UTF-8; paste another one")
                continue
            if text.startswith("/quit") and text.split()[0] == "/quit":
                break
            if text.startswith("/"):
                self._obey(text)
            elif text.strip():
                self._answer(text)
        return ExitCode.OK

    def _answer(self, text: str) -> None:
        try:
            with interruptions() as is_stopped:
                answer = self._chat.answer(text, _show, is_stopped)
        except ValueError as error:
            return _note(str(error))
        print()
        if answer.dropped:
            length = self._chat.model.length
            _note(f"{many(answer.dropped, 'old turn')} left out: the model reads {length} tokens at a time")
        if answer.ended == STOPPED:
            _note("stopped")
        elif answer.ended == LENGTH:
            _note(f"the answer ends after {many(answer.tokens, 'token')}; --max-tokens sets the limit")

    def _obey(self, line: str) -> None:
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        try:
            match name:
                case "/reset":
                    self._chat.conversation.reset()
                    _note("what was said is forgotten")
                case "/newest":
                    self._chat.take_newest()
                    _note(self._chat.opened.sentence)
                case "/temp":
                    self._set_temperature(rest)
                case "/save":
                    self._save(rest)
                case "/help":
                    print(HELP)
                case _:
                    _note(f"there is no command {visible(name[:40])}; /help lists them")
        except PeerError as error:
            _note(visible(error.text))
        except OSError as error:
            _note(f"{visible(rest)}: {error.strerror}; name another file")

    def _set_temperature(self, rest: str) -> None:
        value = math.nan
        with suppress(ValueError):
            value = float(rest)
        if not 0 <= value <= MAX_TEMPERATURE:
            return _note(f"the temperature is {self._chat.temperature:g}; give a number from 0 to {MAX_TEMPERATURE:g}")
        self._chat.temperature = value
        _note(f"the temperature is {value:g}")

    def _save(self, rest: str) -> None:
        turns = self._chat.conversation.turns
        if not rest or not turns:
            return _note("name a file, as in /save talk.jsonl" if turns else "nothing was said yet")
        try:
            path = Path(os.path.expanduser(rest))
            if path.exists():
                return _note(f"{visible(str(path))} exists already; name a new file")
            write_atomically(path, (json.dumps(self._chat.conversation.record()) + "\n").encode(), replace=False)
        except ValueError:  # a null byte
            return _note(f"{visible(rest)} is not a valid file name; name another file")
        _note(f"{many(len(turns), 'turn')} saved in {visible(str(path))}")


def _note(text: str) -> None:
    """Print a note below an answer."""
    print(f"[{text}]")


@contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C.  Only a second Ctrl-C raises KeyboardInterrupt."""
    stopped: list[int] = []

    def remember(number: int, frame: object) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(number)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(stopped)
    finally:
        signal.signal(signal.SIGINT, before)
