"""Versions of the weights for peers that generate: published, fetched, checked.

`weight_versions` owns the parts, `catalogue` says which versions count, `making` writes files and patches.  Read
`weight_versions` first.
"""
