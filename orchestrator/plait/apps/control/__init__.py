"""Runs under way, seen and steered from another process: by the sockets of this host, or through a store."""
