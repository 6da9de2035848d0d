"""Panels: each module draws one side of a peer's `Picture` as lines of text, in the width and height that it is given."""
