"""The files of Serried on disks: listed, measured, and deleted once no run needs them."""
