"""`peer doctor`: checks whether this computer can take part, names its problems, and estimates its contribution."""
