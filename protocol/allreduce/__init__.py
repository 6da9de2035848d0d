"""The all-reduce of a round: every member averages some chunks for all.

The package assigns chunks to members, routes parts and averages, gives up members that are silent or late, and shortens the
waiting time for peers that made others wait.  `protocol.agreement` decides which members take part and which averages count.
Read `machine` first, which is pure.  `runner` performs its I/O, `assignment` deals out the chunks, and `lateness` has all
rules about late peers.
"""
