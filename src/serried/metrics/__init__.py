"""What agents measured of runs, read in one way by all commands that show it."""
