"""A stand-in for fastecdsa: the names that py-libp2p 0.8 imports, without their functions."""

from __future__ import annotations

from typing import NoReturn


class _Missing:
    """A name of fastecdsa; reading anything of it raises NotImplementedError."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NotImplementedError(
            "keys on the curve P-256 need the real fastecdsa: pip install --force-reinstall fastecdsa==2.3.2"
        )


class curve:  # noqa: N801
    """Stands in for the module `fastecdsa.curve`."""

    Curve = _Missing
    P256 = _Missing()


class point:  # noqa: N801
    """Stands in for the module `fastecdsa.point`."""

    Point = _Missing


keys = _Missing()
