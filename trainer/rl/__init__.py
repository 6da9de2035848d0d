"""Reinforcement learning: rollouts, their verification, groups and advantages, and the learner that trains on them."""
