"""Generation of completions: sampling that can be checked, the cache of keys and values, batched decoding."""
