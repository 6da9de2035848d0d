"""The definition of a run, and how peers come into it.

`manifest` is the signed definition, `run_file` what a person writes, `admission` who may take part, `invitation` what
is handed on. Read `manifest` first.
"""
