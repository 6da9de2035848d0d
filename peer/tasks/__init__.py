"""Files of tasks: import from data sets, check before publication, and solve rates measured with a model's answers.

`task_import.py` turns published data sets into a file of tasks.  `checking.py` reads a file as strictly as every peer will.
`rating.py` measures how often a model solves each task.  `protocol.tasks` decides which sets a run uses.

Read `checking.py` first.
"""
