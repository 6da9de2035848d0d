"""What this computer has, what a run takes, and how several peers share the cores."""
