"""Large content by its hashes: files, versions of the weights and results, fetched from many peers at once.

`swarm` owns the parts: `fetching` and `download` get blobs, `offers` and `uploads` give them, `shelf` keeps them.
"""
