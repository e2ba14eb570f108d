"""`plait repl`: an interactive session."""
