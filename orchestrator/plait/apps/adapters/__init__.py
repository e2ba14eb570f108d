"""plait inside other frameworks. Each module needs the package that it is named after; those over
plait serve are in `plait_server.adapters`."""
