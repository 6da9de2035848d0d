"""Numerical kernels of manyhands: the int8 codec, averaging, the outer step, the losses, TOPLOC proofs."""
