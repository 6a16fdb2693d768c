"""Messages between a server and its sites, and the state machines of both ends: no sockets, no threads."""
