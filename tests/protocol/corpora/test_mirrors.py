"""Mirrors: ranges cost bounded time and bytes whatever a server does, and bad mirrors are left."""

from __future__ import annotations

import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from protocol.blobs.blob import Blob
from protocol.blobs.mirrors import (
    CONNECT_S,
    MOST_REST_S,
    TOLD_FAILURES,
    Mirrors,
    RangeAbsent,
    RangeClient,
    RangeFailed,
    RangeForbidden,
    WebDialer,
)
from protocol.corpora.manifest import Shard
from protocol.disk import StoreFull
from protocol.events.events import Event, Notice
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from tests.protocol.blobs.peers import PEERS
from tests.protocol.corpora import web
from tests.protocol.corpora.corpora import Corpus, a_corpus
from tests.protocol.corpora.web import OTHER_PUBLIC, PRIVATE, PUBLIC, Manner, Site, Web, files_of, on_the_web

pytestmark = pytest.mark.usefixtures("virtual_time")

# -- ranges ---------------------------------------------------------------------------------------------------------------

CONTENT = bytes(range(256)) * 256
URL = "http://mirror.test/file"
SIZES = [1000, 2000, 500]
WANTED = [CONTENT[512:1512], CONTENT[1512:3512], CONTENT[3512:4012]]


async def read(client: RangeClient, url: str = URL, start: int = 512) -> list[bytes]:
    got: list[bytes] = []

    async def receive(piece: bytes) -> None:
        await trio.lowlevel.checkpoint()
        got.append(piece)

    await client.read(url, start, SIZES, receive)
    return got


def a_site(manner: Manner = web.honest) -> Site:
    return Site({"/file": CONTENT}, manner)


@pytest.mark.parametrize("manner", [web.honest, web.chunked, web.endless])
@on_the_web
async def test_a_range_comes_in_its_pieces_and_no_further_byte_is_read(web: Web, manner: Manner) -> None:
    site = web.add("mirror.test", PUBLIC, a_site(manner))
    assert await read(RangeClient(dialer=web)) == WANTED
    (request,) = site.requests
    assert request.headers["host"] == "mirror.test" and request.headers["accept-encoding"] == "identity"
    await trio.sleep(1)
    assert site.sent < 3 * (64 << 10), "the connection is closed once the range is here"


@pytest.mark.parametrize(
    ("manner", "kind", "reason", "most_s"),
    [
        (web.silent, RangeFailed, "does not answer in time", 15),
        (web.stalling, RangeFailed, "is too slow", 10),
        (web.trickling, RangeFailed, "is too slow", 11),
        (web.vanishing, RangeFailed, "breaks off", 0),
        (web.whole, RangeForbidden, "sends whole files instead of ranges", 0),
        (web.other_range, RangeFailed, "sends another range", 0),
        (web.short, RangeFailed, "sends fewer bytes", 0),
        (web.missing, RangeAbsent, "does not have the file", 0),
        (web.compressing, RangeForbidden, "compresses", 0),
        (web.babbling, RangeFailed, "does not speak HTTP", 0),
        (web.heading, RangeFailed, "does not speak HTTP", 0),
        (web.informing, RangeForbidden, "sends far more", 0),
        (web.chunking(b"1;" + b"x" * 15_000 + b"\r\n.\r\n"), RangeForbidden, "sends far more", 0),
        (web.redirecting("http://["), RangeForbidden, "malformed", 0),
        (web.redirecting("//[x]/file"), RangeForbidden, "malformed", 0),
    ],
)
@on_the_web
async def test_a_server_that_misbehaves_is_left_soon(
    web: Web, manner: Manner, kind: type[Exception], reason: str, most_s: float
) -> None:
    site, start = web.add("mirror.test", PUBLIC, a_site(manner)), trio.current_time()
    with pytest.raises(kind, match=reason) as caught:
        await read(RangeClient(dialer=web))
    assert type(caught.value) is kind and trio.current_time() - start <= most_s + 0.1
    await trio.sleep(1)
    assert site.sent < 4 * (64 << 10)


@on_the_web
async def test_the_beginning_of_a_whole_file_may_come_as_such(web_: Web) -> None:
    site = web_.add("mirror.test", PUBLIC, a_site(web.whole))
    assert b"".join(await read(RangeClient(dialer=web_), start=0)) == CONTENT[: sum(SIZES)]
    await trio.sleep(1)
    assert site.sent < 4 * (64 << 10)


@on_the_web
async def test_the_users_limit_slows_the_reading_and_is_not_the_servers_fault(web_: Web) -> None:
    web_.add("mirror.test", PUBLIC, a_site(web.chunked))
    paid = list[int]()

    async def pay(size: int) -> None:
        paid.append(size)
        await trio.sleep(60)

    assert await read(RangeClient(dialer=web_, pay=pay)) == WANTED
    assert sum(SIZES) <= sum(paid) and len(paid) > 1 and trio.current_time() >= 60 * len(paid)


@on_the_web
async def test_everything_that_a_server_sends_counts_as_traffic(web_: Web) -> None:
    site = web_.add("mirror.test", PUBLIC, a_site(web.chunking(b"1\r\n.\r\n")))
    paid = list[int]()

    async def pay(size: int) -> None:
        paid.append(size)

    assert await read(RangeClient(dialer=web_, pay=pay)) == [b"." * size for size in SIZES]
    await trio.sleep(1)
    assert sum(paid) >= 6 * sum(SIZES) and site.sent <= sum(paid) + 2 * (64 << 10)


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ip",
    "127.0.0.1 10.0.0.7 192.168.1.1 172.16.0.1 100.64.0.1 169.254.169.254 0.0.0.0 224.0.0.1 255.255.255.255 192.0.2.1 "
    "::1 :: fe80::1 fc00::1 ff02::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1 2002:7f00:1::1 2001:db8::1".split(),
)
@on_the_web
async def test_addresses_that_are_not_public_are_not_dialled(web: Web, ip: str) -> None:
    web.add("mirror.test", PUBLIC, a_site())
    web.names["mirror.test"].append(ip)
    with pytest.raises(RangeForbidden, match="not public"):
        await read(RangeClient(dialer=web))
    assert not web.dialled, "not even the public ones: the name is not to be trusted"


@on_the_web
async def test_the_user_may_allow_networks(web: Web) -> None:
    web.add("mirror.test", PRIVATE, a_site())
    client = RangeClient([ipaddress.ip_network("10.0.0.0/24")], dialer=web)
    assert await read(client) == WANTED
    web.names["mirror.test"] = ["10.0.1.7"]
    with pytest.raises(RangeForbidden, match="not public"):
        await read(client)


@on_the_web
async def test_the_next_address_is_tried_if_one_does_not_answer(web: Web) -> None:
    web.names["mirror.test"] = [OTHER_PUBLIC]
    web.add("mirror.test", PUBLIC, a_site())
    assert await read(RangeClient(dialer=web)) == WANTED
    assert web.dialled == [OTHER_PUBLIC, PUBLIC]


@pytest.mark.parametrize(
    "location", ["http://inside.test/file", f"http://{PRIVATE}/file", "http://127.0.0.1:8080/", "http://[::1]/file"]
)
@on_the_web
async def test_a_redirect_to_a_private_address_is_not_followed(web_: Web, location: str) -> None:
    web_.add("mirror.test", PUBLIC, a_site(web.redirecting(location)))
    web_.add("inside.test", PRIVATE, a_site())
    for ip in (PRIVATE, "127.0.0.1", "::1"):
        web_.names[ip] = [ip]
    with pytest.raises(RangeForbidden, match="not public"):
        await read(RangeClient(dialer=web_))
    assert web_.dialled == [PUBLIC]


@on_the_web
async def test_three_redirects_are_followed_and_no_more(web_: Web) -> None:
    for number in range(4):
        manner = web.redirecting(f"http://mirror{number + 1}.test/file")
        web_.add(f"mirror{number}.test", f"93.184.216.{number}", a_site(manner))
    web_.add("mirror4.test", PUBLIC, a_site())
    assert await read(RangeClient(dialer=web_), "http://mirror1.test/file") == WANTED
    with pytest.raises(RangeForbidden, match="more than 3 times"):
        await read(RangeClient(dialer=web_), "http://mirror0.test/file")


@on_the_web
async def test_a_redirect_may_lead_to_a_long_address_with_signatures(web_: Web) -> None:
    """Hugging Face sends readers of large files to such addresses."""
    signed = "file?Policy=" + "e" * 1500
    web_.add("mirror.test", PUBLIC, a_site(web.redirecting(f"http://cdn.test/{signed}")))
    web_.add("cdn.test", "93.184.216.1", Site({f"/{signed}": CONTENT}))
    assert await read(RangeClient(dialer=web_)) == WANTED


@pytest.mark.parametrize(
    "url",
    [
        "ftp://mirror.test/x",
        "http://",
        "file:///etc/passwd",
        "http://a b/",
        "http://me:secret@mirror.test/",
        "http://x:99999/",
        "http://\xff.test/",
        "http://mirror.test/\xff",
    ],
)
@on_the_web
async def test_other_addresses_are_no_mirrors(web_: Web, url: str) -> None:
    web_.add("mirror.test", PUBLIC, a_site(web.redirecting(url)))
    with pytest.raises(RangeForbidden, match="names a|more than 3"):
        await read(RangeClient(dialer=web_))


async def test_names_that_never_resolve_and_servers_that_never_accept_have_a_deadline() -> None:
    class Slow(Web):
        async def dial(self, ip: str, port: int) -> trio.abc.Stream:
            await trio.sleep_forever()
            raise AssertionError

    async with trio.open_nursery() as nursery:
        web = Slow(nursery)
        web.add("mirror.test", PUBLIC, a_site())
        with pytest.raises(RangeFailed, match="in time"):
            await read(RangeClient(dialer=web))
        assert trio.current_time() == CONNECT_S
        with pytest.raises(RangeFailed, match="not found"):
            await read(RangeClient(dialer=web), "http://nowhere.test/file")


# -- real sockets, and TLS --------------------------------------------------------------------------------------------


class Ranges(BaseHTTPRequestHandler):
    """A static server that knows ranges."""

    def do_GET(self) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(CONTENT)}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        self.wfile.write(CONTENT[first : last + 1])

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def a_server(tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server of this computer; its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


HERE = [ipaddress.ip_network("127.0.0.1/32")]


def test_over_real_sockets() -> None:
    with a_server() as port:
        assert trio.run(read, RangeClient(HERE), f"http://127.0.0.1:{port}/file") == WANTED
        with pytest.raises(RangeForbidden, match="not public"):
            trio.run(read, RangeClient(), f"http://127.0.0.1:{port}/file")
    with pytest.raises(RangeFailed, match="does not accept connections"):
        trio.run(read, RangeClient(HERE), f"http://127.0.0.1:{port}/file")


class Trusting(WebDialer):
    """Trusts one certificate, and finds all names on this computer."""

    def __init__(self, certificate: Path) -> None:
        self._certificate = certificate

    async def look_up(self, host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        return ["127.0.0.1"]

    def tls(self, stream: trio.abc.Stream, host: str) -> trio.SSLStream:
        context = ssl.create_default_context(cafile=str(self._certificate))
        return trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)


def a_certificate(folder: Path, name: str) -> Path:
    """A file with a key, and its certificate for a name, signed by itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "certificate.pem"
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path


def test_with_tls_the_server_proves_its_name(tmp_path: Path) -> None:
    path = a_certificate(tmp_path, "mirror.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    with a_server(context) as port:
        trusting = RangeClient(HERE, dialer=Trusting(path))
        assert trio.run(read, trusting, f"https://mirror.test:{port}/file") == WANTED
        for client, name in ((trusting, "other.test"), (RangeClient(HERE), "127.0.0.1")):
            with pytest.raises(RangeForbidden, match="does not prove its name"):
                trio.run(read, client, f"https://{name}:{port}/file")


async def test_no_redirect_leads_from_https_to_http() -> None:
    class Plain(Web):
        def tls(self, stream: trio.abc.Stream, host: str) -> trio.SSLStream:
            stream.do_handshake = trio.lowlevel.checkpoint  # type: ignore[attr-defined]
            return stream  # type: ignore[return-value]

    async with trio.open_nursery() as nursery:
        web_ = Plain(nursery)
        site = web_.add("mirror.test", PUBLIC, a_site(web.redirecting("/other")))
        site.manner = web.redirecting("http://mirror.test/file")
        with pytest.raises(RangeForbidden, match="from https to http"):
            await read(RangeClient(dialer=web_), "https://mirror.test/file")
        assert len(web_.dialled) == 1
        nursery.cancel_scope.cancel()


# -- mirrors --------------------------------------------------------------------------------------------------------------

CORPUS = a_corpus()
(FIRST, *_) = CORPUS.shards.values()
URLS = [f"http://mirror{number}.test/corpus/shards" for number in range(3)]


class Reader:
    """Mirrors of a web, and what they gave.  asked: names, in order."""

    def __init__(self, web: Web, corpus: Corpus = CORPUS, count: int = 3) -> None:
        self.corpus, self.events = corpus, list[Event]()
        self.sites = [
            web.add(f"mirror{number}.test", f"93.184.216.{number}", Site(files_of(corpus, "/corpus")))
            for number in range(count)
        ]
        self.mirrors = Mirrors(URLS[:count], RangeClient(dialer=web), PEERS[0], self.events.append)
        self.got: dict[int, bytes] = {}
        self.asked: list[str] = []

    async def blocks(self, numbers: range = range(1, 5), shard: Shard = FIRST) -> bool:
        """Read blocks; another mirror goes on where one fails."""

        async def keep(number: int, data: bytes) -> None:
            assert number not in self.got and data == self.corpus.bytes_of(shard.block(number))
            self.got[number] = data

        blob = Blob.cut(shard.root, self.corpus.leaves[shard.root], shard.spans)
        while left := [number for number in numbers if number not in self.got]:
            ready = self.mirrors.ready(shard.root)
            if not ready:
                return False
            self.asked.append(ready[0])
            await self.mirrors.read_chunks(ready[0], blob, range(left[0], left[-1] + 1), keep)
        return True

    async def leaves(self, shard: Shard = FIRST) -> list[Hash] | None:
        return await self.mirrors.read_leaves(shard.root, len(shard))

    async def first(self) -> int:
        """The number of the mirror that is asked first for these blocks."""
        await self.blocks()
        self.got.clear()
        return URLS.index(self.asked.pop(0))

    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice) and event.level == "warning"]


@on_the_web
async def test_consecutive_blocks_come_in_one_request_and_leaves_in_another(web: Web) -> None:
    reader = Reader(web)
    assert await reader.blocks() and [*reader.got] == [1, 2, 3, 4]
    assert await reader.leaves() == CORPUS.leaves[FIRST.root]
    assert sum(len(site.requests) for site in reader.sites) == 2 and not reader.events


@on_the_web
async def test_a_file_that_is_published_under_its_own_name_is_read_by_ranges_and_checked(web: Web) -> None:
    """A mirror of a frozen model knows nothing of our hashes, which come from a peer."""
    data = [bytes([number]) * 100 for number in range(3)]
    leaves = [chunk_hash(each) for each in data]
    blob = Blob(tree_root(leaves), tuple(leaves), (100, 100, 100))
    files = {"/someone/model.safetensors": b"".join(data)}
    web.add("mirror.test", PUBLIC, Site(files))
    names = {blob.name: "model.safetensors"}
    mirrors = Mirrors(["http://mirror.test/someone"], RangeClient(dialer=web), PEERS[0], names=names)
    got: dict[int, bytes] = {}

    async def keep(chunk: int, piece: bytes) -> None:
        got[chunk] = piece

    assert await mirrors.read_chunks(mirrors.ready(blob.name)[0], blob, range(1, 3), keep)
    assert got == {1: data[1], 2: data[2]}
    files["/someone/model.safetensors"] = b"x" * 300
    assert not await mirrors.read_chunks("http://mirror.test/someone", blob, range(3), keep) and not mirrors.ready(blob.name)


@pytest.mark.parametrize("manner", [web.stalling, web.vanishing, web.missing])
@on_the_web
async def test_another_mirror_goes_on_where_one_failed(web: Web, manner: Manner) -> None:
    reader = Reader(web)
    bad = reader.sites[await reader.first()]
    bad.manner = manner
    assert await reader.blocks() and [*reader.got] == [1, 2, 3, 4]
    assert not reader.warnings()
    requests, reader.got = len(bad.requests), {}
    assert await reader.blocks() and len(bad.requests) == requests, "it rests"


@pytest.mark.parametrize(
    ("manner", "words"),
    [
        (web.liar, f"sends wrong bytes of {FIRST.root.hex()}.shard"),
        (web.whole, "sends whole files instead of ranges"),
        (web.redirecting("http://10.0.0.7/"), "not public"),
    ],
)
@on_the_web
async def test_who_lies_or_breaks_a_rule_is_set_aside_with_a_sentence(web: Web, manner: Manner, words: str) -> None:
    reader = Reader(web)
    web.names["10.0.0.7"] = ["10.0.0.7"]
    number = await reader.first()
    reader.sites[number].manner = manner
    assert await reader.blocks() and [*reader.got] == [1, 2, 3, 4]
    (warning,) = reader.warnings()
    assert warning.startswith(f"the mirror mirror{number}.test ") and words in warning
    await trio.sleep(10 * MOST_REST_S)
    assert {*reader.mirrors.ready(FIRST.root)} == {*URLS} - {URLS[number]}
    requests, reader.got = len(reader.sites[number].requests), {}
    assert await reader.blocks() and len(reader.sites[number].requests) == requests


@on_the_web
async def test_leaves_of_another_root_set_a_mirror_aside(web_: Web) -> None:
    reader = Reader(web_)
    for site in reader.sites:
        site.manner = web.liar
    assert await reader.leaves() is None
    await trio.sleep(10 * MOST_REST_S)
    assert not reader.mirrors.ready(FIRST.root)


@on_the_web
async def test_a_mirror_that_vanished_is_asked_twice_as_late_each_time_and_used_again_when_it_is_back(web_: Web) -> None:
    reader = Reader(web_, count=1)
    (site,) = reader.sites
    site.manner = web.babbling
    asked_at = list[float]()
    while trio.current_time() < 1500:
        if reader.mirrors.ready(FIRST.root):
            asked_at.append(trio.current_time())
            assert not await reader.blocks()
        await trio.sleep(0.5)
    gaps = [round(after - before) for before, after in pairwise(asked_at)]
    assert gaps[:8] == [2, 4, 8, 16, 32, 64, 128, 256] and set(gaps[8:]) <= {300}
    assert len(reader.warnings()) == 1 and len(asked_at) > TOLD_FAILURES
    site.manner = web.honest
    await trio.sleep(MOST_REST_S)
    assert await reader.blocks()
    site.manner = web.babbling
    reader.got.clear()
    assert not await reader.blocks()
    await trio.sleep(3)
    assert reader.mirrors.ready(FIRST.root), "a success ends the backoff"


@on_the_web
async def test_a_disk_that_is_full_is_no_fault_of_the_mirror(web: Web) -> None:
    reader = Reader(web)

    async def keep(number: int, data: bytes) -> None:
        raise StoreFull("the disk is full")

    blob = Blob.cut(FIRST.root, CORPUS.leaves[FIRST.root], FIRST.spans)
    with pytest.raises(StoreFull):
        await reader.mirrors.read_chunks(URLS[0], blob, range(2), keep)
    assert not reader.events and len(reader.mirrors.ready(FIRST.root)) == 3
