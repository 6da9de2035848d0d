"""Measurements of this computer and its lines: `peer bench`."""
