"""`plait ctl`, `plait top`: running runs of this host, seen and steered from another process."""
