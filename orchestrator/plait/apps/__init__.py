"""What people touch: the command line. One module a group of commands."""
