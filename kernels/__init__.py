"""The numbers of manyhands: the int8 codec, averaging, the outer step, the loss."""
