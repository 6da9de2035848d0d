"""Events and the status of a peer: the only view of it that the terminal UI, logs and metrics have.

`events` has a dataclass for everything that happens, `status` the state of a peer at one moment, `why_idle` the reasons
why it does not train, and `rollout_tally` counts what became of rollouts.  Imports nothing heavy.  Read `events` first.
"""
