"""Reading checkpoints before a GPU is taken: from a folder or from the hub. Judging them is `domain`'s work."""
