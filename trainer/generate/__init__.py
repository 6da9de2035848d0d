"""Generation of completions in turns with an environment, with tokens that any peer can check.

It decides the order of requests and the choice of tokens; it leaves prompts, rewards and verdicts to `trainer.environments`
and `trainer.rl`.  Read `generator` first, then `engine`.
"""
