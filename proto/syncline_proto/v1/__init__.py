"""Code generated from schema/syncline/sync/v1/sync.proto by `make generate`. Never edited."""
