"""Files of tasks: they are checked before they are published, and rated by a model's answers.

`checking.py` reads a file as strictly as every peer will.  `rating.py` measures how often a model solves each task.
`protocol.tasks` decides which sets a run uses.

Read `checking.py` first.
"""
