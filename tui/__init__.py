"""Terminal interface of manyhands: draws a running peer, over its control socket, or a recording.

`feed` follows a peer and `player` a recording; both fold events and status into the `picture`, from which the modules
in `panels` draw lines of text.  `app` has the keys and the screen.  Read `app` first.
"""
