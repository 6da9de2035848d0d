"""The protocol by which the peers of Manyhands communicate and agree: identity, wire, rounds, exchange, chain."""
