"""Maintenance of a root: doctor, gc, repartition, restore."""
