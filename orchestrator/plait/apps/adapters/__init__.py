"""plait inside other frameworks. Each module needs the package that it is named after."""
