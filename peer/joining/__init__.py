"""Steps from a word on the command line to a run.

`run_source.py` finds the run's manifest or invitation; `lobby.py` fetches the manifest from other peers; `standing.py`
checks our admission before any other peer is asked.  `inviting.py` makes invitations, and `purpose.py` describes a run in
words.

`protocol.run` defines formats and signatures.  Read `run_source.py` first.
"""
