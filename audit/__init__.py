"""Breachmark sets what an attacker rebuilds beside what theory says nobody can.

The layers, imports pointing down only (`tests/test_layers.py` enforces it)::

    L5  audit: __main__ launch compose registry run games accounting scoring flags
               rows scorecard report markdown figures bench doctor progress setup
               reconstruction in_turn attributes membership    how games are played
    L4  scenarios/      YAML: what is audited, with the table of the paper it is from
    L3  defenses/ attacks/    plug-ins, one short file each, found by name
    L2  audit: mechanisms queries samplers batches    parts -> Defense
               lanes shadow    thousands of runs
    L1  audit: rng data clip fisher rdp bounds metrics perceptual store    leaves
               noise linear dense signals models masks optimizers pretrain regressor
    L0  audit.types     contracts only

Read `audit/run.py` first: it is the whole audit on one page.
"""
