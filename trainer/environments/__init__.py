"""Environments: problems that a model answers, the scoring of answers, and the sandbox for untrusted programs.

They decide prompts, replies and scores, the same on every computer; they leave what is learned from them to `trainer.rl`.
Read `environment` first; `registry` opens environments by name, and `sandbox` runs what a model wrote.
"""
