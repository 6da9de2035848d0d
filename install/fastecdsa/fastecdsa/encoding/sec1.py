"""Encoding of public keys; see the package above."""

from fastecdsa import _Missing

SEC1Encoder = _Missing()
