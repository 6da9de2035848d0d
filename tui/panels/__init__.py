"""Panels: each module draws one part of a peer's `Picture` as lines of text, in a given width and height."""
