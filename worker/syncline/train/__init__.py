"""The trainer: one replica of a run, driven by a TOML file.

``python -m syncline.train JOB.toml`` trains alone; with SYNCLINE_CONTROL set it takes part in a
run. Nothing here is needed by those who bring their own loop: for them there is Replica.
"""
