"""Broken copies of the package: each lacks one promise, and a test must notice it."""
