"""The pages of `serried watch`: facts read from files, drawn as text, and shown on a terminal by Textual."""
