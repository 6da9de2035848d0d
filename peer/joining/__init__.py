"""From a word on the command line to a run: its manifest, its invitations, and this peer's admission to it."""
