"""What keeps a root sound: doctor, gc, repartition, restore."""
