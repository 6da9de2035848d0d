"""Generation of completions in turns with an environment, with tokens that any peer can check.

The package decides the order of requests and the choice of tokens. It leaves prompts, rewards and verdicts to
`trainer.environments` and `trainer.rl`. Read `generator` first, then `engine`.
"""
