"""The files of Serried on disks: listed, measured, and deleted once no run needs them.

Run directories, copies of code, environments, images and staged data enter; `disk_items` lists each with its size, its
last use and the reason why it must stay, and `removal` deletes what has none. It checks once more just before, and
renames first: a submission that has just chosen an archive stores it anew. The only copy of an output stays.
"""
