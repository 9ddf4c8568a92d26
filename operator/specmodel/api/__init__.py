"""What a user writes and reads: the wire types of `specmodel.dev/v1alpha1`, its conditions and its labels.

Nothing here decides, renders or talks to a cluster.
"""
