"""The container that ranks run in, as its node sees it."""
