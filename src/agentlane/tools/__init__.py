"""Tools that many agents need, each set in a module of its own. Nothing here is imported unless it is asked for."""
