"""Large data in chunks that are checked by their hashes: kept on the disk, fetched from many peers, served to others.

The package decides which chunk comes from which peer, which chunk is sent first (SHARDCAST), and how bytes become durable.
Its users decide which blobs are wanted, when, and which of them are kept.  `blob` defines blobs and the messages about them;
`store` keeps blobs on the disk; `fetcher` fetches whole blobs to the disk.  Below them, `swarm` owns this peer's part in the
network: `transfer`, `download` and `mirrors` get chunks, `offers` and `uploads` give them.  Read `blob`, then `store` and
`fetcher`.
"""
