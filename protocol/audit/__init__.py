"""Proofs of lies by electors and members, and the ejection of the liars.

`evidence` makes and judges proofs, `witness` and `auditor` look for lies in statements and in results, `accusations` limits
the accusations that are examined, and `ejection` excludes proven liars.  There is no other punishment.  Read `evidence`
first.
"""
