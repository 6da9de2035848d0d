"""Measurements of this computer and its lines, for `peer bench` and `peer doctor`."""
