"""Training data: text and chats, their tokens, and the schedule that assigns windows to peers.

The package decides which tokens a window has, the same for all peers. It leaves the opening of a run's files to
`trainer.reading`, and the loss to `trainer.models`. Read `rows` first, then `corpus`; `embedded` and
`chat` have data that a run does not fetch by blocks, and `tokens` has the tokenizers.
"""
