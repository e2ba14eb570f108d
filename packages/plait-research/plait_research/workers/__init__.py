"""Workers: model servers of other programs."""
