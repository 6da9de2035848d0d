"""Talk with a model in the terminal, for `peer chat`.

The package decides which turns a model reads, what of its answer a terminal sees, and whether memory suffices.  It leaves
the choice of tokens to `trainer.generate.engine`, and the form of a conversation to `trainer.data.templates`.  Read
`terminal` first, then `conversation` and `model`.
"""
