"""Files that are written whole, and files that stay locked for as long as their owner lives."""
