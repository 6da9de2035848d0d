"""Everything large, in chunks that are checked by their hashes: kept on the disk, fetched from many peers, given to others.

The package decides which chunk comes from whom and what is sent first (SHARDCAST), and how bytes become durable.  It leaves
to its users which blobs are wanted, when, and which of them stay.  `blob` says what a blob is and how peers talk about it;
`store` keeps blobs on the disk; `fetcher` brings a whole one there.  Below them, `swarm` owns this peer's part in the
network: `transfer` and `download` get chunks, `offers` and `uploads` give them.  Read `blob`, then `store` and `fetcher`.
"""
