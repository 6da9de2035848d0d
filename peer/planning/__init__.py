"""Prediction of a run before anybody joins (`peer simulate`).

This package decides how long rounds take, how much of its time a trainer computes, and which settings waste little of it.
The protocol's own modules decide who owns which chunk and when a round closes.  `model.py` computes the round that peers
repeat; `cost.py` has the time and the bytes of an exchange and of an agreement, `swarm.py` reads the description of the
peers, `proposal.py` chooses settings, and `report.py` prints.  Read `model.py` first.
"""
