"""`python -m saddlepoint` is `saddlepoint`."""

from saddlepoint.cli import main

if __name__ == "__main__":
    main()
