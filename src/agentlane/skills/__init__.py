"""Skills and templates of an agent: Markdown files that are read when the agent is defined."""
