"""Output of a peer for people and programs: log lines, JSON, and the standard streams."""
