"""How an attempt ended. Pure, but for `saved` and `diagnose`, which look into files.

evidence, saved, missing   what is known: the journals, the checkpoints, what could not be brought back
verdict, diagnose          what that means, and one word for why a rank failed
afterwards                 the same in the light of what only job.sh or the scheduler knows
"""
