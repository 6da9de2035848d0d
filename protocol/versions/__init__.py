"""Versions of the weights for peers that generate: published, fetched, checked.

The package decides which versions are usable, which way to the newest one takes the fewest bytes, and which files are kept.
`blobs` stores files and fetches chunks.  `weight_versions` owns the parts and publishes, `catalogue` decides which versions
are usable,
`following` fetches, `making` writes files and patches.  Read `weight_versions` first.
"""
