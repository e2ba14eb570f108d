"""`python -m plait`: the same as the command `plait`."""

from .apps.main import main

if __name__ == "__main__":
    main()
