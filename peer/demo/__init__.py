"""A swarm of real peers on one computer, to see that it works."""
