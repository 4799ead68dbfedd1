"""Training and predicting on one's own data: what ``rankfold train`` and ``rankfold predict`` do.

A *preparation* knows how one kind of data becomes tensors, and is learned from the training part alone. A *job* is
what a user asked for. A run folder holds both, the model and all figures; it is all that predicting needs.
"""
