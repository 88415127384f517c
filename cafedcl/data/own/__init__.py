"""A user's own images: folders, tables, arrays and Hugging Face data sets."""
