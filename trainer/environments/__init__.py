"""Environments: problems that a model answers, the scoring of answers, and the sandbox for untrusted programs.

The package decides prompts, replies and scores, which are the same on every computer. It leaves learning from them to
`trainer.rl`. Read `environment` first; `registry` opens environments by name, and `sandbox` runs programs written by a
model.
"""
