"""Prompts: sets that come with fednlp or are a user's own, and the search for words and triggers by gold labels."""
