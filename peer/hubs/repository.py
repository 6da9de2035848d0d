"""A model repository of a hub, and the errors of its server as sentences.

The client is huggingface_hub's, with two differences: an answer has a bounded size and a deadline, and errors that pass with
time are raised as `HubBusy` at once, so that one place decides how long to wait.  Files go to the hub over git LFS and not
Xet, whose client has no deadlines; HF_HUB_DISABLE_XET=0 in the environment chooses Xet.

The token comes from the environment.  It is sent to the hub's host alone, over TLS unless the hub is on this computer, and
is in no error, log or file.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from peer.errors import ExitCode, PeerError
from protocol.formatting import clean
from trainer.extras import install_command

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TOKEN, ENDPOINT = "HF_TOKEN", "HF_ENDPOINT"
HUB = "https://huggingface.co"
TARGET = re.compile(r"hf:([A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})")
TOKEN_FORM = re.compile(r"[!-~]{1,1000}")
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
SILENCE_S = 120.0
"""Seconds in which the hub must take or give some bytes."""
ANSWER_S = 300.0
"""Seconds in which the hub must have given a whole answer."""
MAX_ANSWER = 16 << 20
MAX_WAIT_S = 3600.0
"""Longest time that a hub makes us wait."""
PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Status codes of errors that may pass with time."""
OK, DENIED = 200, (401, 403)
CHANGED = (409, 412)


class HubBusy(PeerError):
    """Error that may pass with time.  wait_s: seconds that the hub asks us to wait; None if it does not say."""

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.wait_s = None if wait_s is None else min(wait_s, MAX_WAIT_S)


@dataclass(frozen=True)
class Head:
    """Newest commit of a repository.  commit: its ID.  files: their paths."""

    commit: str
    files: frozenset[str]


def repository_name(target: str) -> str:
    """Return the name in a target such as hf:owner/name; raises `PeerError`."""
    match = TARGET.fullmatch(target)
    if match is None or "--" in match[1] or ".." in match[1] or match[1].endswith(".git"):
        raise PeerError(f"{clean(target, 200)} is not a repository of a hub; write hf:OWNER/NAME", ExitCode.INPUT)
    return match[1]


class HubRepository:
    """A model repository of the hub in HF_ENDPOINT, opened with the token in HF_TOKEN.  Blocking; raises `PeerError`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._endpoint, self._token = _endpoint(), _token()
        self._host = urlsplit(self._endpoint).netloc.rpartition("@")[2]
        self._api = _client_of(self._endpoint, self._token)

    def head(self) -> Head:
        """Return the newest commit.  A repository that does not exist is made, and is public."""
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._explained():
            try:
                info = self._api.model_info(self.name)
            except RepositoryNotFoundError:
                self._api.create_repo(self.name, exist_ok=True)
                info = self._api.model_info(self.name)
            return Head(str(info.sha), frozenset(each.rfilename for each in info.siblings or ()))

    def read(self, path: str, commit: str) -> bytes:
        """Return a small file of a commit."""
        from huggingface_hub import get_session, hf_hub_url

        url = hf_hub_url(self.name, path, revision=commit, endpoint=self._endpoint)
        with self._explained():
            response = get_session().get(url, headers={"Authorization": f"Bearer {self._token}"})
            if response.status_code != OK:
                raise self._refusal(response)
            return bytes(response.content)

    def commit(self, parent: str, message: str, files: Mapping[str, Path | bytes], gone: frozenset[str]) -> str:
        """Commit files on `parent`, by their paths, and return the commit's ID.  gone: paths to remove.

        Nothing is committed if the repository has moved on from `parent`; then `HubBusy` is raised.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        with self._explained():
            operations = [CommitOperationDelete(path) for path in sorted(gone)]
            added = [CommitOperationAdd(path, content) for path, content in files.items()]
            done = self._api.create_commit(
                self.name, [*operations, *added], commit_message=message, parent_commit=parent, num_threads=2
            )
            return str(done.oid)

    def tag(self, name: str, commit: str) -> None:
        """Give a commit a tag, unless the repository has this tag already."""
        with self._explained():
            self._api.create_tag(self.name, tag=name, revision=commit, exist_ok=True)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the client into sentences without addresses, which may hold keys."""
        try:
            yield
        except PeerError:
            raise
        except Exception as error:
            raise self._explanation(error) from None

    def _explanation(self, error: Exception) -> Exception:
        """Return the error for the person.  The client raises errors of many kinds if an answer is not from a hub."""
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError

        each: BaseException | None = error
        while each is not None:
            match each:
                case HubBusy():
                    return each
                case HfHubHTTPError():
                    return self._refusal(each.response)
                case httpx2.HTTPError():
                    said = f"{self._host} cannot be reached ({type(each).__name__})"
                    return HubBusy(f"{said}; check your network connection")
                case OSError():
                    return each  # of a file on this computer
            each = each.__cause__
        said = self._without_token(str(error))
        return PeerError(f"{self._host} does not answer as a hub ({type(error).__name__}: {said}); check {ENDPOINT}")

    def _refusal(self, response: Any) -> PeerError:
        code = response.status_code
        said = self._without_token(response.headers.get("X-Error-Message", ""))
        if code in DENIED:
            return PeerError(
                f"{self._host} does not let {TOKEN} write to {self.name} ({code}); put a token with write access to it into "
                f"{TOKEN}",
                ExitCode.INPUT,
            )
        if code in CHANGED:
            return HubBusy(f"{self.name} was changed by somebody else meanwhile ({code}); nobody else should push to it")
        return PeerError(
            f"{self._host} refused the push ({code}{': ' * bool(said)}{said}); look at {self.name} in a browser"
        )

    def _without_token(self, text: str) -> str:
        """Return the beginning of a text that may be the hub's."""
        return clean(text.replace(self._token, "…"), 200)


def _endpoint() -> str:
    endpoint = (os.environ.get(ENDPOINT) or HUB).rstrip("/")
    parts = urlsplit(endpoint)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOCAL_HOSTS):
        raise PeerError(
            f"{ENDPOINT} is not an https address, and would get your token in the clear; correct or unset it", ExitCode.INPUT
        )
    return endpoint


def _token() -> str:
    token = os.environ.get(TOKEN, "").strip()
    if not token:
        raise PeerError(f"{TOKEN} is not set; put a token with write access into this environment variable", ExitCode.INPUT)
    if not TOKEN_FORM.fullmatch(token):
        raise PeerError(
            f"{TOKEN} does not contain a token; put a token with write access into it, and nothing else", ExitCode.INPUT
        )
    return token


def _client_of(endpoint: str, token: str) -> HfApi:
    """Return huggingface_hub's client, which reads some of the environment when it is imported."""
    for name in ("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    try:
        import httpx2
        from huggingface_hub import HfApi, set_client_factory

        utils: Any = import_module("huggingface_hub.utils")
    except ImportError as error:
        raise PeerError(f"huggingface_hub is missing or old; run {install_command('hf')}", ExitCode.INPUT) from error

    hub = httpx2.URL(endpoint).origin

    class Client(httpx2.Client):
        """Client whose answers have a bounded size and a deadline, and which tells the token to nobody but the hub."""

        def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            """Send a request, and read the whole answer."""
            if request.url.origin != hub:
                request.headers.pop("Authorization", None)  # a hub names another host for storage
            response = super().send(request, **{**options, "stream": True})
            try:
                body = _bounded(response.iter_bytes(), time.monotonic() + ANSWER_S)
            finally:
                response.close()
            if response.status_code in PASSING:
                limit, asked = utils.parse_ratelimit_headers(response.headers), response.headers.get("Retry-After", "")
                wait_s = float(asked[:9]) if asked.isdecimal() else None
                if limit is not None and limit.remaining == 0:
                    wait_s = float(limit.reset_in_seconds)
                raise HubBusy(f"{request.url.host} is busy ({response.status_code})", wait_s)
            headers = response.headers
            headers.pop("Content-Encoding", None)  # the content is decoded, so that the limit counts decoded bytes
            return httpx2.Response(response.status_code, headers=headers, content=body, request=response.request)

    utils.logging.set_verbosity_error()
    utils.disable_progress_bars()
    set_client_factory(lambda: Client(follow_redirects=True, timeout=httpx2.Timeout(SILENCE_S)))
    return HfApi(endpoint=endpoint, token=token, library_name="manyhands")


def _bounded(parts: Iterator[bytes], until: float) -> bytes:
    """Return all parts of an answer; raises `HubBusy` or `ValueError`."""
    body = bytearray()
    for part in parts:
        body += part
        if len(body) > MAX_ANSWER:
            raise ValueError("its answer is too long")
        if time.monotonic() > until:
            raise HubBusy(f"the hub's answer takes longer than {ANSWER_S:.0f} s")
    return bytes(body)
