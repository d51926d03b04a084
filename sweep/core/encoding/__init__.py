"""Between values and text: the codec of records, node lists, and words that depend on a number."""
