"""`python -m feltd` is the `feltd` command."""

from feltd.cli.main import main

if __name__ == "__main__":
    main()
