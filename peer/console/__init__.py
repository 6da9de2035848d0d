"""What a person or a program reads of a peer: sentences, log lines, JSON, the live view, and the output they go to."""
