"""Tasks, which interpret requests. Each task has its own file, and the file's name is the plugin's name."""
