"""What trainers and servers say to each other: the types, and their written form."""
