"""The Python, the libraries and the container of ranks: located, made active, checked, and how to build them."""
