"""Downloads models from the Hugging Face hub and uploads results to it."""
