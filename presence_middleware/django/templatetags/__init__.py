"""The template tags, in the package that Django looks for."""
