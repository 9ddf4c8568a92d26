"""The benchmark Job: load one server cell after cell and write what was seen into one BenchmarkRun.

    read the run ─► wait for the target ─► per cell: warm up, scrape, load, scrape ─► write the cell ─► outcome
                                                      ▲ stop rule: the operator's own verdict of a cell

It runs in a pod whose account may get that one BenchmarkRun and patch its status, nothing else. It must not decide
which candidate serves, and must not write conditions: those belong to the operator.
"""
