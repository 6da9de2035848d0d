"""Versions of the weights for peers that generate: published, fetched, checked.

The package decides which versions count, the way with the fewest bytes to the newest one, and which files stay.  It leaves
the files and chunks to `blobs`.  `weight_versions` owns the parts and publishes, `catalogue` says which versions count,
`following` fetches, `making` writes files and patches.  Read `weight_versions` first.
"""
