"""What runs in the child process of the sandbox, before and around a program that nobody trusts.

Needs the standard library alone.  Nothing here is meant to run in a process that does anything else.
"""
