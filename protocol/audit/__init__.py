"""Proofs of lies by electors and members, and the ejection of the liars.

`evidence` defines lies, and makes and judges proofs; `witness` and `auditor` look for lies in statements and in
results, and `ejection` examines accusations and excludes proven liars.  There is no other punishment.  Read `evidence`
first.
"""
