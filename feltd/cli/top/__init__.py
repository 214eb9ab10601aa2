"""`feltd top`: the mesh on one screen, as it changes."""
