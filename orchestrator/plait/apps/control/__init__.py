"""Show and control running runs from another process: by the sockets of this host, or through a store."""
