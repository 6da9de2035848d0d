"""Weights in files: folders with which a run begins, exported and merged models, and versions to publish.

`brought.py` reads all data that comes with a run file.  `folders.py` writes Hugging Face folders for `peer export` and
`peer merge`; `publish.py` prepares a version for its publisher; `tokenizer_files.py` keeps the tokenizer for exports.

`trainer.weights` defines the file formats, and `protocol.versions` decides which peers may publish.  Read
`brought.py` first.
"""
