"""What is written to the cluster: a pure function per object kind, plain dicts in wire form.

Nothing here reads the cluster, decides, or knows a client library.
"""
