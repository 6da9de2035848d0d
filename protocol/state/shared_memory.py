"""Anonymous memory that two processes on one computer share.

The memory has no name in any file system, so nothing is left behind however the processes end: `memfd_create` where
there is one, an unlinked temporary file elsewhere.  Who may write what, and when, is the owner's business.
"""

from __future__ import annotations

import mmap
import os
import tempfile


class SharedRegion:
    """`size` bytes of zeroed shared memory.

    fd: file descriptor to hand to another process at its start (not inherited unless it is asked for).
    view: the memory, writable, as bytes.
    """

    def __init__(self, size: int, name: str = "manyhands") -> None:
        assert size > 0, "a region has at least one byte"
        self.size = size
        self.fd = _anonymous_file(name)
        try:
            os.ftruncate(self.fd, size)
            self._map = mmap.mmap(self.fd, size)
        except OSError:
            os.close(self.fd)
            raise
        self.view = memoryview(self._map)
        self._closed = False

    def close(self) -> None:
        """Give the memory back.  Arrays that still look at it keep it mapped until they are gone."""
        if self._closed:
            return
        self._closed = True
        os.close(self.fd)
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # a numpy array still looks at it; the mapping goes with the array


def _anonymous_file(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix=name)
    os.unlink(path)
    return fd
