"""The choice of the preset `guarded`: settings, measurements on real models, and the rule."""
