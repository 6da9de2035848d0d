"""Weights out of a run, and into one: Hugging Face folders on one side, the data directory on the other."""
