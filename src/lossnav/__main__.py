"""``python -m lossnav`` is the command line."""

from lossnav.cli.commands import main

if __name__ == "__main__":
    main()
