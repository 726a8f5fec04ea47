"""What Serried has put on disks, how large it is, and what of it nobody needs any more."""
