"""Weights in files: folders with which a run begins, exported and merged models, and the measurement of models.

`brought.py` reads all data that comes with a run file.  `folders.py` writes Hugging Face folders for `peer export` and
`peer merge`; `tokenizer_files.py` keeps the tokenizer for exports.

`trainer.weights` defines the file formats.  Read `brought.py` first.
"""
