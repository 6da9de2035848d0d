"""Training data: rows of corpora, and the tokens of texts and chats.

The package decides which tokens a row has, the same for all peers. It leaves the opening of a run's files to
`trainer.reading`, and the loss to `trainer.models`. Read `rows` first, then `corpus`; `tokens` has the tokenizers, and
`chat` and `templates` the forms of conversations, with which the peer builds corpora.
"""
