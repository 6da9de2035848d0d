"""Resources of this computer, needs of a run, and the sharing of cores among several peers."""
