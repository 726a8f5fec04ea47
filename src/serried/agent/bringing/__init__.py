"""Results and checkpoints come back: one niced process on each node copies them from its disk while training runs.

`looking` says what is there and complete, `copying` brings it whole or not at all, `ledger` knows whose a name is,
`placing` where it goes, `rounds` in what order, `pace` how fast; `service` is the process, `node` its agent's side.
"""
