"""The search for prompts on the texts of a simulation."""
