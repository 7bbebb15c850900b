"""Speed figures, each a ratio measured in one run: this says how we compare, not how fast the machine is."""
