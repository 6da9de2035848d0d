"""Files of tasks: check before publication, and solve rates measured with a model's answers.

`checking.py` reads a file as strictly as every peer will.  `rating.py` measures how often a model solves each task.
`protocol.tasks` decides which sets a run uses.

Read `checking.py` first.
"""
