"""Tools for testing agents and backends: scripted models, faults, clocks, conformance, invariants."""
