"""The running peer: starts its components, wires them together, and ends them."""
