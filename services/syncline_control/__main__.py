"""``syncline-control``, or ``python -m syncline_control``: the door, which loads what is behind it.

So Ctrl+C is heard while it is.
"""

from syncline_proto.loading import Loading


def main() -> None:
    """Run the control plane and end the process with its exit code."""
    with Loading():
        from syncline_control.command import main as command
    command()


if __name__ == "__main__":
    main()
