"""Training data: text, chats and their tokens, and the schedule that assigns windows to peers."""
