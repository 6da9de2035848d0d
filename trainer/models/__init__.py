"""Models, with a folder for each family.

A family decides which tensors a model has and how the model computes. `kernels.losses` computes the loss, and
`trainer.weights` reads and writes the files. Read `llama.config` first.
"""
