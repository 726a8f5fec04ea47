"""The trials of a search by Optuna: each array task asks for the parameters of its trial when it starts.

search       the role `search`: asks, and watches the metric; the only module that imports Optuna
head_side    the head's end: waits for the parameters before ranks start, and stops a trial that is pruned
"""
