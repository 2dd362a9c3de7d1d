"""What Syncline's programs must agree on: the wire, the settings, the errors.

Worker, sync service and control plane meet here and nowhere else. Imports nothing else of ours.
"""
