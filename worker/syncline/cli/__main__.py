"""``python -m syncline.cli``: the command line without the installed script."""

from syncline.cli.app import main

if __name__ == "__main__":
    main()
