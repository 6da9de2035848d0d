"""Curves of a run for the trackers that organisers use: TensorBoard, Weights & Biases, MLflow (`peer track`).

Read `points.py` first, which decides what is told of each round; `trackers.py` writes it to each of them.
"""
