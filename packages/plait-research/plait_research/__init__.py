"""What researchers of parallel reasoning use beside plait."""
