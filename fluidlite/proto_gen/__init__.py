"""Generated from proto/*.proto by proto/generate.py; do not edit."""
