"""What a person or a program reads of a peer: log lines, JSON, and the output they go to."""
