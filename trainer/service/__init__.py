"""The side of the trainer process that the peer process talks to."""
