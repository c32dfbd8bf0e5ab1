"""The few lines of a site that wants a product's login; their own virtual environments run them."""
