"""Stop rules: policies that end a vote when enough is known. One file each; the file's name is the plugin's name."""
