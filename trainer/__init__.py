"""Trainer process of manyhands, which the peer process starts and commands.

It decides nothing about the swarm: it computes contributions, rollouts and verdicts, and leaves agreement, networking and
disk space to `protocol` and `peer`.  Read `service.service` first: it obeys the peer's commands.  `worker` trains on text,
`rl.learner` on rollouts.
"""
