"""Generation of completions: verifiable sampling, cache of keys and values, batched decoding.  Begin with `generator`."""
