"""Exhaustive exploration of the agreement: the pure functions themselves, run through all reachable states."""
