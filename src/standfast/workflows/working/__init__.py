"""Workers: finding runs that can go on, and taking over those of workers that died."""
