"""A run as one HTML page that needs nothing else, and as TensorBoard event files."""
