"""Identity: from a request to a kind and an id."""
