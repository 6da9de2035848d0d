"""Weights in files: folders that a run begins with, exported and merged models, and versions to publish.

`brought.py` reads everything that a run file brings along.  `folders.py` writes Hugging Face folders for `peer export` and
`peer merge`; `publish.py` prepares a version for its publisher; `tokenizer_files.py` keeps the tokenizer for exports.

File formats are those of `trainer.weights`; who may publish is decided in `protocol.versions`.  Read `brought.py` first.
"""
