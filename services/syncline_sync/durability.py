"""What a store keeps when its disk refuses, in words for whoever is to mend it."""

NOTHING_LOST = (
    "start the service again: nothing that was published is lost, or with durability async at most "
    "the newest revision of a fragment."
)
