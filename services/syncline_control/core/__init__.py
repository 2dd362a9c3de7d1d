"""What the control plane decides, without I/O: leases, the life of a run, curves.

Pure: no clock, no file, no thread. Times come in as seconds; decisions go out as values.
"""
