"""How trainers and servers reach each other: over gRPC, or inside one process."""
