"""Plans made before they are needed: one that does well under many conditions, or one for each of them."""
