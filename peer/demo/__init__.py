"""The demo: a swarm of real peers on one computer, which shows that everything works.

`swarm.py` chooses the run, starts the peers and watches them.  `cast.py` says who takes part and what the demo of training
is to reach; `learning.py` does so for rollouts.  `cheats.py` is the program of a peer that cheats.

Read `swarm.py` first.
"""
