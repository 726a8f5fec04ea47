"""Stands in for the boilerplate's module: one dict that everybody shares. Written anew."""

current_config = {}
