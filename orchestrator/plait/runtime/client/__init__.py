"""What programs use: the clients, their settings, handles of runs, answers."""
