"""What a store keeps when its disk refuses, in words for whoever is to mend it."""

NOTHING_LOST = (
    "start the service again: nothing that was published is lost, or with durability async at most "
    "the newest revision of a fragment."
)


def beside_runs(refused: str) -> str:
    """The disk's refusal of a save or a restore, after which the service goes on."""
    return refused.replace(f", then {NOTHING_LOST}", ", then try again: the runs here go on.")
