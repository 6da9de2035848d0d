"""Building of corpora: documents of many formats become the blocks and the manifest of `protocol.corpora`.

The package decides which documents a corpus has, their order and their tokens.  The same inputs and options give the same
bytes, for any number of workers, and after an interruption.  `build.py` has the whole process; `inputs.py` reads files,
`forms.py` tells their forms, `documents.py` turns rows into tokens, and `parts.py` keeps them sorted on the disk.
`folder.py` writes and reads a corpus.  Read `build.py` first.
"""
