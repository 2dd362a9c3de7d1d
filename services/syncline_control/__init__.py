"""The control plane: runs, replicas, leases, settings and events, over REST and on a live page.

Knows nothing of tensors; meets worker and sync service only in syncline_proto.
"""
