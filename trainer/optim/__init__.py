"""Inner optimisation of one member in one round: AdamW, its loop and schedule, its moments on disk."""
