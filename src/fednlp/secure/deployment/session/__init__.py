"""What both ends of a secure sum agree on and say."""
