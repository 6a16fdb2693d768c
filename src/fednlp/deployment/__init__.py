"""A federation between machines that keep their texts: identities, sessions, and the rounds between them."""
