"""Files of tasks: checked before other peers hear of them, and rated by the answers of a model.

`checking.py` reads a file as strictly as every peer will.  `rating.py` measures how often a model solves each task.  Which
sets a run uses is decided in `protocol.tasks`.

Read `checking.py` first.
"""
