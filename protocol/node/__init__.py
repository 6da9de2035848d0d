"""The parts of a peer, wired together, and its life.

`node` makes the parts and is the face for the program around them.  `router` delivers messages to the components that
declare them.  `lifecycle` runs round after round until the peer leaves; `rounds` begins each, and is asked about the current
one; `round_runner` runs it, with `contributor` and `exchanges`.  `state` keeps the chain and the outer state.  The decisions
in a round are left to `protocol.agreement`, the averages to `protocol.allreduce`.  Read `lifecycle` first.
"""
