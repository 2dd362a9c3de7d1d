"""What a replica decides, without I/O: where shards lie, when to sync, how progress moves."""
