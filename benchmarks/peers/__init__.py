"""What takes part in the rounds that ``benchmarks/round.py`` times: one script for each system.

Each is run by the python of its own environment, with nothing of Syncline's but this package on its
path (the replica's own script apart): here are numpy, the standard library, and that peer.
"""
