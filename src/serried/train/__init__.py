"""What a training script imports: `import serried.train as st`. Importing it imports no torch."""

from __future__ import annotations
