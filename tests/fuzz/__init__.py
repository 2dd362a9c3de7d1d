"""The sync service under malformed traffic: pushes that are spoilt anywhere.

``streams`` draws what is sent, ``rules`` says from docs/protocol.md alone what of it may count,
``arena`` sends it to a real service and compares; ``flood`` does so to a process and watches its
memory. ``python -m fuzz`` is the long form.
"""
