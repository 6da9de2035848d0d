"""Discovery of other peers: on this computer, in the address book, at the addresses of an invitation."""
