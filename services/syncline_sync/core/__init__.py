"""What the sync service decides. Pure: no clock, thread, socket or file; time comes in."""
