"""Settings of a peer: one definition each, and the source of the value in force."""
