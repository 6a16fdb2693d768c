"""The federated round. Nothing in this package knows of text, tasks, models or transports."""
