"""What a person may set: one definition each, and where the value in force comes from."""
