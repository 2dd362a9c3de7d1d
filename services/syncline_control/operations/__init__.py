"""What the routes ask and tell, one transaction each.

Every operation takes a Transaction first and returns a view from proto/rest.py. They ask the core
what is allowed and write down what it answers; they never wait and know no HTTP.
"""
