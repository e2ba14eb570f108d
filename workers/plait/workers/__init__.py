"""Workers: one file or package each, found by name. `_shared` holds what several of them use."""
