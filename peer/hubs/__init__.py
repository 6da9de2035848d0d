"""Pushes of a run's model to a repository of a hub such as huggingface.co (`peer export --push`).

Read `pushing.py` first, which decides which states are pushed and how a killed push continues; `repository.py` speaks with
the hub, and `card.py` writes the model card.
"""
