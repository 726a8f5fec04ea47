"""Stands in for the boilerplate's module. Written anew."""

import torch


class _Device:
    def __init__(self):
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def set(self, device):
        self._device = torch.device(device)

    def get(self):
        return self._device


device = _Device()
