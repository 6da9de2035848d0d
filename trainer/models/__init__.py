"""Models, in a folder for each family, and their loss."""
