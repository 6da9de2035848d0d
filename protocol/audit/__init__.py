"""Proofs of lies by electors and members, and what follows from them.

`evidence` makes and judges proofs, `witness` and `auditor` look for lies in statements and in results, `accusations` says
whose rumours are looked into, `ejection` keeps out who lied.  Punishment beyond that does not exist.  Read `evidence` first.
"""
