"""The client of manyhands: command line, daemon, control socket."""
