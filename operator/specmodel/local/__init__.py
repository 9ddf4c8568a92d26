"""`specmodel try`: the operator's candidates, benchmark and decision on one machine, with processes in place of pods.

command    arguments, preflight, answer, exit codes
setup      from arguments and manifest to what is measured
installed  which vLLM is here
terminal   what a person sees meanwhile
session    the loop: decide, start what is wanted and fits, measure, write down, decide again
engine     one vLLM process: started, waited for, its last words, stopped with everything that it started
devices    which GPUs (or parts of a CPU) there are
store      the results folder: one BenchmarkRun per file, and under which conditions it was measured
weights    whether a folder holds the checkpoint that it held before
advice     the recommended manifest
"""
