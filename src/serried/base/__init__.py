"""Files and folders: written in one step, copied, scanned, locked, deleted. Python 3.9."""
