"""What a mechanism leaks, as formulas on the host: Fisher, Renyi, bounds, vMF."""
