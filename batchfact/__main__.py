"""`python -m batchfact` is the console script."""

from batchfact.cli import main

if __name__ == "__main__":
    main()
