"""Decoders of the Llama family: shape, model, initial parameters.  Begin with `config` and `model`."""
