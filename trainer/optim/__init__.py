"""The inner optimisation of one member in one round."""
