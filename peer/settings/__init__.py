"""Settings of a peer: one definition of each, and the value in force with its source.

`preferences.py` defines every setting: default, notation and meaning.  `values.py` reads and writes the notations.
`file.py` gathers values from flags, environment and peer.toml, and holds the changes made while a peer runs.

Read `preferences.py` first.
"""
