"""The all-reduce of a round: who averages which chunk, the machine of one member, and its transport.

`machine` is pure; `runner` sends and receives for it; `assignment` deals the chunks out.  Read `machine` first.
"""
