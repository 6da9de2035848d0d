"""Rests that a peer takes by itself: outside its hours, on battery, too hot, or for other programs' sake."""
