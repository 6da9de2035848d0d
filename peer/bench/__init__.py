"""What this computer and its lines can do, measured: `peer bench`."""
