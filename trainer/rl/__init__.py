"""Reinforcement learning: rollouts, their verification, rewards and advantages, and the learner.

The package decides whether a rollout is honest and what is learned from it. It leaves problems and scores to
`trainer.environments`, tokens to `trainer.generate`, the loss to `kernels.losses`, and the trust in peers to
`protocol.rollouts`. Read `worker` first, then `verification` and `learner`.
"""
