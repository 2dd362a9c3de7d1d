"""The sync service under malformed traffic: calls that are spoilt anywhere.

Of pushes ``streams`` draws what is sent, ``rules`` says from docs/protocol.md alone what of it may
count, ``arena`` sends it to a real service and compares. Of pulls and openings ``requests``,
``replies`` and ``asking`` do. ``flood`` sends all of it to a process, with ``hogs``, and watches
its memory. ``python -m fuzz`` is the long form.
"""
