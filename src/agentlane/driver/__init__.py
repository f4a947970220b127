"""Effects of an operation: model requests, tool calls and timers, driven pass by pass through the line."""
