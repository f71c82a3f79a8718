"""The labelled set, the training of the bundled model, and the published studies: scripts and data, not installed."""
