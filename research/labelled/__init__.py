"""A labelled set of texts, legitimate repetition and loops, that the rates of docs/detection.md are measured on."""
