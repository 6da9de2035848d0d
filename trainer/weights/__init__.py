"""Weights in Hugging Face folders: reading, writing, merging, and the formats of numbers.

It decides which folders can be used, and leaves the meaning of tensors to `trainer.models`.  It imports numpy, and never
torch.  Read `folder` first.
"""
