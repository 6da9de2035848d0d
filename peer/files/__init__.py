"""Files that are written whole, and files that are held locked for as long as their owner lives."""
