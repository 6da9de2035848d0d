"""Decoders of the Llama family: Llama 2 and 3, Qwen 2 and 3.

`config` decides the shape, the tensors and their order, `model` computes, `initial` draws initial parameters, and
`huggingface` translates a config.json. `trainer.weights` handles files of weights. Read `config` first.
"""
