"""Weights in Hugging Face folders, and adapters in folders of PEFT: reading, writing, merging, and number formats.

The package decides which folders can be used, and leaves the meaning of tensors to `trainer.models`. It imports numpy, and
no torch except in `base`. Read `folder` first.
"""
