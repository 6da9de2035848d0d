"""`peer doctor`: whether this computer can take part, what hinders it, and what it would contribute."""
