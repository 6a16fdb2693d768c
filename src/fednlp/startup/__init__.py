"""What a process imports late, or in part, so that it begins at once: a trick for each slow import.

Nothing here changes a result. Each module says what it stands in for; docs/architecture.md says when it can go.
"""
