"""Encodings; see the package above."""

from fastecdsa import _Missing


class util:  # noqa: N801
    """Stands in for the module `fastecdsa.encoding.util`."""

    int_bytelen = _Missing()
