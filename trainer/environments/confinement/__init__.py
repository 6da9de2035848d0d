"""Confinement of an untrusted program: the code that runs in the sandbox's child process, before and around it.

It needs only the standard library, and must run in no other process.  Begin with `launcher`.
"""
