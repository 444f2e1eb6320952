"""A host back to what it was before its first change."""
