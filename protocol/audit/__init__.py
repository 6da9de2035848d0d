"""Proofs of lies by electors and members, and the ejection of the liars.

`evidence` defines lies, makes and judges proofs, and compares statements; `auditor` looks for wrong averages in results, and
`ejection` examines accusations and excludes proven liars.  There is no other punishment.  Read `evidence` first.
"""
