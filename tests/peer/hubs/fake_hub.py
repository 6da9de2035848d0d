"""A hub on loopback that keeps what it is given: as much of one as pushes need, with a storage host of its own."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_aSecretForTests"


@dataclass(frozen=True)
class Commit:
    """What a repository holds after a commit."""

    id: str
    message: str
    files: Mapping[str, bytes]


@dataclass
class Repository:
    """Commits, of which the first is the hub's own, and tags."""

    commits: list[Commit] = field(default_factory=lambda: [Commit("0" * 40, "initial commit", {".gitattributes": b""})])
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> Mapping[str, bytes]:
        return self.commits[-1].files

    @property
    def pushed(self) -> list[int]:
        """Rounds of the states in the order in which they came."""
        return [json.loads(commit.files["manyhands.json"])["rounds"] for commit in self.commits[1:]]


@dataclass(frozen=True)
class Answer:
    """An answer.  hold: the client waits for it in vain."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    hold: bool = False


class FakeHub:
    """The hub, and its storage on another port.  `troubles`: answers to give first to requests with a word in the path."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.stored: dict[str, bytes] = {}
        self.troubles: dict[str, list[Answer]] = {}
        self.asked: Counter[str] = Counter()
        self.keys: dict[str, set[str | None]] = {"hub": set(), "storage": set()}
        self.holding = threading.Event()
        """Set while a client waits for an answer that does not come."""
        self.instead: dict[str, Answer] = {}
        """Answers to give once in place of the true ones, to requests with a word in the path that are carried out."""
        self.takes_half = False
        """True to take half of an upload once, and then to wait until the client is gone."""
        self.address = self.storage = ""

    def trouble(self, path: str) -> Answer | None:
        for word, answers in self.troubles.items():
            if word in path and answers:
                return answers.pop(0)
        return None

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        """Answer a request to the hub itself."""
        parts = path.strip("/").split("/")
        match method, parts:
            case "POST", ["api", "repos", "create"]:
                said = json.loads(body)
                name = f"{said['organization']}/{said['name']}"
                self.repositories.setdefault(name, Repository())
                return _json({"url": f"{self.address}/{name}"})
            case "POST", ["api", "validate-yaml"]:
                return _json({"warnings": [], "errors": []})
            case "POST", [_, _, "info", "lfs", "objects", "batch"]:
                return _json({"objects": [self._action(each) for each in json.loads(body)["objects"]]})
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        repository = self.repositories.get(name)
        if repository is None:
            return Answer(404, headers={"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        match method, parts:
            case "GET", ["api", "models", _, _]:
                siblings = [{"rfilename": path} for path in repository.files]
                return _json({"id": name, "sha": repository.commits[-1].id, "siblings": siblings})
            case "GET", [_, _, "resolve", commit, path]:
                (found,) = (each for each in repository.commits if each.id == commit)
                return Answer(body=found.files[path])
            case "POST", ["api", "models", _, _, "preupload", "main"]:
                return _json({"files": [_upload_mode(each["path"]) for each in json.loads(body)["files"]]})
            case "POST", ["api", "models", *_, "commit", "main"]:
                return self._commit(name, [json.loads(line) for line in body.splitlines()])
            case "POST", ["api", "models", _, _, "tag", commit]:
                tag = json.loads(body)["tag"]
                if tag in repository.tags:
                    return Answer(409)
                repository.tags[tag] = commit
                return Answer()
        raise AssertionError(f"{method} {path}")

    def _action(self, wanted: dict[str, Any]) -> dict[str, Any]:
        if wanted["oid"] in self.stored:
            return wanted
        upload = {"href": f"{self.storage}/{wanted['oid']}?signature=aSignature"}
        return {**wanted, "actions": {"upload": upload, "verify": {"href": f"{self.storage}/verify"}}}

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> Answer:
        repository = self.repositories[name]
        (header, *operations) = lines
        assert header["key"] == "header"
        if header["value"]["parentCommit"] != repository.commits[-1].id:
            return Answer(412, headers={"X-Error-Message": "A commit has happened since"})
        files = dict(repository.files)
        for operation in operations:
            value = operation["value"]
            match operation["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.stored[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
                case key:
                    raise AssertionError(key)
        commit = Commit(f"{len(repository.commits):040x}", header["value"]["summary"], files)
        repository.commits.append(commit)
        return _json({"commitUrl": f"{self.address}/{name}/commit/{commit.id}", "commitOid": commit.id})

    def store(self, path: str, body: bytes) -> Answer:
        """Answer a request to the storage."""
        oid = path.strip("/").partition("?")[0]
        if oid == "verify":
            return Answer()
        if hashlib.sha256(body).hexdigest() != oid:
            return Answer(400)
        self.stored[oid] = body
        return Answer()


def _json(value: object) -> Answer:
    return Answer(body=json.dumps(value).encode())


def _upload_mode(path: str) -> dict[str, Any]:
    return {"path": path, "uploadMode": "lfs" if path.endswith(".safetensors") else "regular", "shouldIgnore": False}


def _handler(hub: FakeHub, host: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            hub.asked[f"{self.command} {self.path.partition('?')[0]}"] += 1
            hub.keys[host].add(self.headers.get("Authorization"))
            body = self._body()
            if body is None:
                return
            told = hub.trouble(self.path)
            if told is None and host == "hub" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                told = Answer(401, headers={"X-Error-Message": f"Invalid credentials {self.headers.get('Authorization')}"})
            if told is None:
                told = hub.store(self.path, body) if host == "storage" else hub.answer(self.command, self.path, body)
                told = next((hub.instead.pop(word) for word in [*hub.instead] if word in self.path), told)
            if told.hold:
                hub.holding.set()
                self.rfile.read(1)  # until the client is gone
                self.close_connection = True
                return
            self.send_response(told.status)
            for name, value in told.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(told.body)))
            self.end_headers()
            self.wfile.write(told.body)

        do_GET = do_POST = do_PUT = do_HEAD = _do

        def _body(self) -> bytes | None:
            """The whole body; None from a client that died before its end."""
            length = int(self.headers.get("Content-Length", 0))
            if host == "storage" and hub.takes_half:
                hub.takes_half = False
                self.rfile.read(length // 2)
                hub.holding.set()
                self.rfile.read()  # until the client is gone
                return None
            body = self.rfile.read(length)
            return body if len(body) == length else None

        def log_message(self, format: str, *words: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Serve a hub while the context lasts."""
    hub = FakeHub()
    servers = {host: ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, host)) for host in hub.keys}
    hub.address, hub.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers.values())
    threads = [threading.Thread(target=server.serve_forever, args=[0.01]) for server in servers.values()]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
