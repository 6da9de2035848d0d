"""Sets of tasks from the crowd: offered, fetched, counted, admitted.

`task_sets` owns the parts, `library` keeps the sets on disk, `counting` judges them.  Read `task_sets` first.
"""
