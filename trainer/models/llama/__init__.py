"""Decoders of the Llama family: their shape, the model, its initial parameters."""
