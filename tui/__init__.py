"""The terminal interface of manyhands."""
