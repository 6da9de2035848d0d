"""Environments: problems that a model answers, the scoring of answers, and the sandbox for untrusted programs.

They decide prompts, replies and scores; `trainer.rl` decides what to learn from them.  Begin with `environment`.
"""
