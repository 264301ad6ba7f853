"""The matrix of seeded faults against checks, and what simpler practice would have caught."""
