"""What researchers use and no server loads: rollouts, learning from runs, routes, tuning, calibrating."""
