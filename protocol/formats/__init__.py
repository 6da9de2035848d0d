"""Sections of the manifest that peers and their trainers both read: fields, ranges, defaults, consistency and meaning.

Each section is defined once.  `protocol.run` adds the fields that only peers read, and the trainer gets the sections as
plain values and checks them again.  The package imports pydantic, and neither trio nor torch.  Read `section` first.
"""
