"""Numerical kernels of manyhands: codecs, averaging, the outer step, losses, TOPLOC proofs, and quantised frozen weights.

They decide numbers, which are the same bit for bit wherever peers compare them. They do not depend on peers, files or
models. Read `layout` and `codecs.ladder` first.  Beside them lies `outside_files`, the reader of files of others, because
protocol and trainer import nothing else in common.
"""
