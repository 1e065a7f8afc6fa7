"""GPU MODE's competition: its file and its measurement. `python tools/contest --help` lists the programs."""
