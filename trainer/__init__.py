"""Trainer process of manyhands: model, data, inner optimisation, rollouts.  The peer process starts and commands it."""
