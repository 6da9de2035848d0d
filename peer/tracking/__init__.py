"""Curves of a run for the trackers that organisers use: TensorBoard, Weights & Biases, MLflow (`peer track`).

Read `trackers.py` first, which decides what is told of each round, and writes it; `child.py` runs it beside a peer.
"""
