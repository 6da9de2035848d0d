"""What goes wrong with somebody's folder."""

from __future__ import annotations


class FolderError(ValueError):
    """A Hugging Face folder that cannot be used; the text is one sentence for a person, with the remedy."""
