"""``python -m fastindex``: the command line."""

from fastindex.cli.commands import main

if __name__ == "__main__":
    main(prog_name="fastindex")
