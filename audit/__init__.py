"""Breachmark: what could an attacker rebuild from a release, and does a defense help?

The layers, imports pointing down only (`tests/test_layers.py` enforces it)::

    L5  audit: __main__ run games scorecard report registry compose bench doctor progress
    L4  scenarios/      YAML: what is audited, with the table of the paper it is from
    L3  defenses/ attacks/    plug-ins, one short file each, found by name
    L2  audit: mechanisms shadow pretrain    parts -> Defense; thousands of runs
    L1  audit: rng data models noise samplers clip linear fisher rdp bounds metrics
               perceptual regressor store    leaves
    L0  audit.types     contracts only

Read `audit/run.py` first: it is the whole audit on one page.
"""
