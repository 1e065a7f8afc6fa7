"""`nvfp4 bench`: times products, layers and experts beside baselines, and tunes launch plans."""
