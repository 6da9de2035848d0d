"""The demo: a swarm of real peers on one computer, which shows that everything works.

`swarm.py` chooses the run, starts the peers and watches them.  `cast.py` defines the peers, and the aim of the demo of
training; `learning.py` defines the aim of the demo with rollouts.  `cheats.py` is the program of a peer that cheats.

Read `swarm.py` first.
"""
