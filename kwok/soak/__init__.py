"""`make soak`: the controller killed at each of its writes, spoiled writes, and 1,000 landings under a flood."""
