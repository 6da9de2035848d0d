"""Events and the status of a peer: the only view of it that the terminal UI, logs and metrics have.

`events` has a dataclass for each kind of event, with its sentence.  `status` has the state of a peer at one moment, with the
reasons for computing nothing.  `rollout_tally` counts rollouts by their verdicts.  The package imports nothing heavy.  Read
`events` first.
"""
