"""`presence demo`: a small site with two workers, wrapped by the middleware.

A simulated crowd visits it.
"""
