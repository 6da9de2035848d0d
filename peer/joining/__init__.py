"""From a word on the command line to a run: its manifest, its invitations, and whether this peer may take part."""
