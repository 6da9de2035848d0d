"""Formats of contributions and results, and the ladder of codecs, from which a run's manifest chooses a step.

A format decides the bytes of a chunk; every computer makes the same bytes from the same values, also on a GPU
(`kernels.codec_triton`). `kernels.layout` decides where chunks lie, `kernels.aggregate` the values of a result. Read
`ladder`, then `format`.
"""
