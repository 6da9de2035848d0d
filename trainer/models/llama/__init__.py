"""Decoders of the Llama family: Llama 2 and 3, Qwen 2 and 3.

`config` decides the shape, the tensors and their order, `model` computes, `initial` draws initial parameters, and
`huggingface` translates a config.json.  Files of weights are left to `trainer.weights`.  Read `config` first.
"""
