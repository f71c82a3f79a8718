"""`python -m lz_penalty` is the command `lz-penalty`."""

from lz_penalty.cli import main

if __name__ == "__main__":
    main()
