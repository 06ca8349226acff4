"""``lossnav`` and ``python -m lossnav``: the command line."""

import sys


def main() -> None:
    """Run the command line, and end with a sentence where no command is there to do so.

    That is while it is still being imported, and for ``--help`` and ``--version``.
    """
    try:
        from lossnav.cli.commands import main as run

        run()
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    except OSError as error:  # such as a full disk under stdout
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
