"""Terminal interface of manyhands: draws a running peer, over its control socket, or a recording.  Begin with `tui.app`."""
