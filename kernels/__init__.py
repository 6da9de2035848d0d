"""Numerical kernels of manyhands: the int8 codec, averaging, the outer step, the losses, TOPLOC proofs.

They decide numbers, the same bit for bit wherever peers compare them; they know no peers, files or models.  Read `layout`
and `codec` first.
"""
