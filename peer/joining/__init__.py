"""The way from a word on the command line to a run.

`run_source.py` finds the run's manifest or invitation; `lobby.py` fetches the manifest from other peers; `standing.py`
checks our admission before anybody is asked.  `inviting.py` makes invitations, and `purpose.py` describes a run in words.

Formats and signatures are those of `protocol.run`.  Read `run_source.py` first.
"""
