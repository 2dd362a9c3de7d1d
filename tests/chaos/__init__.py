"""The sync service under a storm: killed at random instants, cut off from its disk's last writes.

``replica`` pushes and pulls as a correct client should, with ``calls``; ``progress`` makes its
pushes, and ``late`` keeps what may have to be sent again; ``plan`` is what the storm tells it.
``ledger`` keeps what was sent and reads what the store committed of it, ``reference`` merges it
once more, ``account`` adds up what became of all progress, ``storm`` kills. ``disk`` forgets what
was not synced. ``python -m chaos`` is the long form.
"""
