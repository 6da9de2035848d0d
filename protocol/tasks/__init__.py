"""Sets of tasks from the crowd: offered, fetched, counted, admitted.

The package chooses the sets that this peer keeps, and the sets that it votes to leave out; `protocol.chain.progress` decides
which sets are in force.  The trainer process reads the tasks.  Read `task_sets` first, which owns the other components.
"""
