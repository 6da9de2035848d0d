"""A network under virtual time: links with bandwidth and delay, weather, partitions.  Read `network` first."""
