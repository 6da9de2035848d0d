"""The models, a folder for each family, and their loss."""
