"""plait inside frameworks of evaluation and training. Each module needs the package that it is named after."""
