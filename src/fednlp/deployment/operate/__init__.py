"""The commands of a federation: serve, join, rehearse, doctor, status and the page."""
