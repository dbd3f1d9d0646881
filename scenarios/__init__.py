"""Scenarios: one YAML file each, named by the word after `scenario=`."""
