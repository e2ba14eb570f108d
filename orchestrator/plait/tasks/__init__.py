"""Tasks: what a request means. One file each; the file's name is the plugin's name."""
