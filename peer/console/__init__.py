"""Standard input, output and error of the commands and of a running peer.

`display.py` writes the events of a running peer as log lines or JSON lines, at the speed of its reader.  `streams.py` has
the descriptors themselves and plain JSON; `asking.py` asks the running peer and prints its answer.
"""
