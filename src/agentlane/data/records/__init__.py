"""What must hold among the stored records of one session, and what can be made of them where it does not."""
