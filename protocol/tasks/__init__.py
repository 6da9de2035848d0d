"""Sets of tasks from the crowd: offered, fetched, counted, admitted.

The package decides which sets this peer has, and which it votes to leave out; `protocol.chain.tasks_in_force` decides which
are in force.  It leaves the reading of tasks to the trainer process.  Read `task_sets` first, which owns the parts.
"""
