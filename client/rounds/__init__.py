"""A device's side of a round: the session, its model, what it starts from, and which model it keeps."""
