"""The benchmark: what is measured, and how; benches/README.md explains it."""
