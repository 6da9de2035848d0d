"""Proofs of lies by electors and members, and what follows from them.

`evidence` makes and judges proofs, `auditor` looks for lies in results, `ejection` keeps out who lied.  Read `evidence`
first.
"""
