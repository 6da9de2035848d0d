"""The all-reduce of a round: the owner of each chunk, the machine of one member, and its transport.

`machine` is pure; `runner` sends and receives for it; `assignment` deals the chunks out.  Read `machine` first.
"""
