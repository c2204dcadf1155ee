"""One package per kind of server. ``url`` opens a backend from a connection URL, and ``base`` defines its interface."""
