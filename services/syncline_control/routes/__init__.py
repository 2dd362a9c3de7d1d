"""REST: one file per thing that is asked about. Routes translate; operations act."""
