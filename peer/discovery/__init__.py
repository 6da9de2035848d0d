"""Where other peers may be: on this computer, in the address book, at the addresses of an invitation."""
