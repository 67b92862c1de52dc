"""VGC doubles on the real Showdown simulator."""
