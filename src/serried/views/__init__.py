"""The look of output."""
