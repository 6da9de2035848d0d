"""The components of a peer, wired together, and the peer's life.

`node` makes the components and is the interface for the surrounding program.  `router` delivers messages to the components
that declare them.  `lifecycle` begins one round after another until the peer leaves; `rounds` runs each of them, with
`round_parts`, `contributor` and `exchanges`.  `state` keeps the chain and the outer state.  `protocol.agreement` decides in
a round, and `protocol.allreduce` averages.  Read `lifecycle` first.
"""
