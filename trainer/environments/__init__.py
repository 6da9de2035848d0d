"""Problems that a model writes answers to, and what an answer is worth."""
