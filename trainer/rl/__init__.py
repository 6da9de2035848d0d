"""Reinforcement learning: rollouts, their groups and advantages, and the learner that trains on them."""
