"""The process of manyhands that trains: model, data, inner optimisation."""
