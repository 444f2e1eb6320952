"""Pure: what the API sends, read strictly."""
