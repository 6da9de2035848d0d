"""The protocol in which the peers of manyhands talk and agree: identity, wire, rounds, exchange, chain."""
