"""`presence demo`: a small site with two workers, wrapped by the middleware."""
