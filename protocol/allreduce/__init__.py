"""The all-reduce of a round: every member averages some chunks for all.

The package decides which member averages which chunk, what is sent to whom, for whom nobody waits any more, and which peers
lose patience for making others wait.  It leaves it to `protocol.agreement` who takes part and which averages count.  Read
`machine` first, which is pure; `runner` sends and receives for it, `assignment` deals the chunks out, and `lateness` has all
rules about late peers.
"""
