"""What comes next: the pure state machine of an operation. No I/O, clock, randomness or async in here."""
