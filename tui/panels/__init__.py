"""The panels: each draws one side of a peer as lines of text, from what is known and the room that it has."""
