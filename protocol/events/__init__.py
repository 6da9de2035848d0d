"""Events and the status of a peer: the only view of it that the terminal UI, logs and metrics have.

`events` has a dataclass for each kind of event, `status` the state of a peer at one moment with the reasons for not
training, and `rollout_tally` counts of the fate of rollouts.  Imports nothing heavy.  Read `events` first.
"""
