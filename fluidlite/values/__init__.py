"""What a scope holds: tensors with LoD, selected rows, tables."""
