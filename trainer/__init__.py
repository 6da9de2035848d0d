"""Trainer process of manyhands, which the peer process starts and commands.

The process decides nothing about the swarm. It computes contributions, rollouts and verdicts, and leaves agreement,
networking and disk space to `protocol` and `peer`. Read `service.service`, which runs the peer's commands, first. `worker`
trains on text, `rl.learner` on rollouts.
"""
