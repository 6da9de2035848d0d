"""When this peer computes nothing by itself: outside its hours, on battery, too hot, or for other programs' sake."""
