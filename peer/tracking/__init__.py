"""Curves of a run for the trackers that organisers use: TensorBoard, Weights & Biases, MLflow (`peer track`).

Read `trackers.py` first, which selects the figures of each round and writes them; `child.py` runs it beside a peer.
"""
