"""The definition of a run, and how peers come into it.

`manifest` is the signed definition, with its `sections`; `run_file` is the form that a person writes.  `admission` decides
who may take part, `invitation` is the string that is handed on, and `settings` has the decisions of the person at this
computer.  Read `manifest` first.
"""
