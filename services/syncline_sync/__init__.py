"""The sync service: replicas push pseudo-gradients, it judges, weighs, merges and publishes."""
