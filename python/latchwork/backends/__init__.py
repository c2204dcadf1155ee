"""One package per kind of server. ``url`` turns a connection URL into an open backend; ``base`` says what one is."""
