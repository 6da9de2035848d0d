"""Weights in Hugging Face folders: reading, writing, merging, and number formats.

The package decides which folders can be used, and leaves the meaning of tensors to `trainer.models`. It imports numpy, but
never torch. Read `folder` first.
"""
