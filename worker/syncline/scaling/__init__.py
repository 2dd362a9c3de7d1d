"""``syncline scaler``: as many replicas as a run should have, where others start and end them.

``core`` decides, ``compose`` and ``kubernetes`` act, ``watch`` asks and tells.
"""
