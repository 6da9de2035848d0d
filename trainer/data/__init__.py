"""The text that is trained on, and who reads which part of it."""
