"""A campaign of random faults on real runs, in a lab and on this machine: `make faults`. Not a part of the tests."""
