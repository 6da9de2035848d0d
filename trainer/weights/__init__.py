"""Weights in Hugging Face folders: reading, writing, and the formats of both.  Imports numpy, and never torch."""
