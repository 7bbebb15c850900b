"""The defence tables: trainings of every method and seed, judged by `quick` and AutoAttack.

``python -m benchmarks.defence TABLE ...`` trains and evaluates what the store, docs/results/defence.json, does
not have yet, and writes the tables of docs/RESULTS.md from it; ``--only`` and ``--suite`` choose networks and
judges, so that several processes share a table, ``--list`` prints the commands, ``--render`` only writes.
Whatever stops it, the same line goes on: inside a training, between two, and on another machine
from the store alone.
"""
