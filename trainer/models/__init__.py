"""Models, in a folder for each family.

A family decides which tensors a model has and how it computes; `kernels.losses` computes the loss, and `trainer.weights`
reads and writes the files.  Read `llama.config` first.
"""
