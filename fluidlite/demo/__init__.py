"""The demo: Wide & Deep on census income data with every categorical feature in distributed tables."""
