"""Records of the library: what is stored, what is exchanged, and the rule for data that crosses the border."""
