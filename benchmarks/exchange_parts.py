"""Parts of the processor time of an exchange: each kind of necessary work, measured alone.

One core, the same sizes as in the exchange, memory that was used before.  The rest of an exchange's processor time is the
event loop, Python, memory that is not in the cache, and waiting for the other core's cache lines.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kernels.aggregate import Rule, aggregate
from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts
from protocol.transport.bulk_link import FRAME_BYTES, TAG_BYTES
from protocol.wire.hashes import chunk_hash

TIMES = 5
CODEC = "int4"
"""Codec of the exchanges that are measured, with contributions and results of one size."""
SENT_BYTES = 256 << 20


def parts(peers: int, parameters: int, chunk: int, rule: Rule) -> Iterator[tuple[str, float]]:
    """Yield each part's name and its processor seconds of one peer in one exchange, at both ends of its connections."""
    codec, layout, _ = chunk_layouts(LADDER[CODEC], parameters, chunk)
    payload, share = layout.payload_bytes, (peers - 1) / peers
    cipher, nonce, plain = AESGCM(bytes(32)), bytes(12), bytearray(FRAME_BYTES)
    sealed, opened = bytearray(FRAME_BYTES + TAG_BYTES), bytearray(FRAME_BYTES)
    cipher.encrypt_into(nonce, plain, None, sealed)
    frames = 2 * share * payload / FRAME_BYTES
    yield "encrypt what it sends (AES-256-GCM)", frames * _seconds(lambda: cipher.encrypt_into(nonce, plain, None, sealed))
    yield "decrypt what it receives", frames * _seconds(lambda: cipher.decrypt_into(nonce, sealed, None, opened))
    yield "copy both through sockets (kernel)", 2 * share * payload * _socket_seconds_per_byte()
    piece = memoryview(bytearray(layout[0].size))
    hashed = 2 * share * payload + payload / peers  # what came, and the results that it made
    yield "hash what came and what it made (BLAKE3)", hashed / layout[0].size * _seconds(lambda: chunk_hash(piece))
    members = [memoryview(bytearray(layout[0].size)) for _ in range(peers)]
    for seed, member in enumerate(members):
        layout.format.encode(np.random.default_rng(seed).standard_normal(layout[0].count, dtype=np.float32), member)
    one_chunk = _seconds(lambda: aggregate(rule, codec, members, [1000] * peers, layout[0].count, piece))
    yield f"average its share ({rule})", one_chunk * parameters / peers / layout[0].count


def _seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds of doing the work once, the median of several times."""
    work()
    times = []
    for _ in range(TIMES):
        count, begun = 0, time.process_time()
        while (used := time.process_time() - begun) < 0.05:
            work()
            count += 1
        times.append(used / count)
    return statistics.median(times)


def _socket_seconds_per_byte() -> float:
    """Return the processor seconds of both ends for a byte over loopback, in frames."""
    one, other = _connected()
    data, into = bytes(FRAME_BYTES), bytearray(FRAME_BYTES)

    def send() -> None:
        for _ in range(SENT_BYTES // FRAME_BYTES):
            one.sendall(data)
        one.close()

    sender, begun = threading.Thread(target=send), time.process_time()
    sender.start()
    while other.recv_into(into):
        pass
    sender.join()
    other.close()
    return (time.process_time() - begun) / SENT_BYTES


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other
