"""The files of Serried on disks: listed, measured, and deleted once no run needs them.

`disk_items` lists run directories, copies of code, environments, images and staged data, each with its size, its last
use and the reason why it must stay. `removal` deletes those without a reason. Just before, it checks again and renames
the archive, so that a submission which is about to reuse it stores a new copy. Runs whose outputs were never fetched
stay, unless the user includes outputs.
"""
