"""What a run costs here and with other packages, side by side: `python -m bench`."""
