"""The terminal interface, from recordings of real peers."""
