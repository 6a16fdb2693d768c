"""A site: its policy, what it has agreed to, its work on its own texts, and what it tells."""
