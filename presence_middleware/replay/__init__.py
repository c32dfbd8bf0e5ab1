"""Who is or was online, from access logs, by the rules of the middleware."""
