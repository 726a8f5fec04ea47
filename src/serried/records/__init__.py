"""What is known of a run: its record and its files in, its state, timeline, logs, figures and advice out.

`record` and `index` are the runs of this user. `status` decides the state of a run from evidence in files and one query
to the scheduler; the first reader that is certain of an end writes it into the record. All others build on these three
and only read, except `stopping` and the marks of `outputs`. Readers load little: a command imports what its runs need.

Do not touch lightly: the table in `status` that says which source decides, each cell of which has a test; and what
counts as certain, because an end is written once and for good.
"""
