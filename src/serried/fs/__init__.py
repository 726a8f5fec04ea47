"""Files and folders: written and renamed at once, copied, scanned, locked, removed. Python 3.9."""
