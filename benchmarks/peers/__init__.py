"""This library beside its peers, in one run, every success counted by one judge: `python -m benchmarks.peers`.

`methods` has what is compared, `cases` on what, `measure` runs it, `projections` compares projections, `cells`
keeps finished measurements, `machine` says where they were made, `page` writes docs/BENCHMARKS.md from them.
"""
