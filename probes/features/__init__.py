"""Features of sparse dictionaries: what they explain of a model's states, where they fire, and what follows from them."""
