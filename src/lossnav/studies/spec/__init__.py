"""What a study file says: its tables, checked, and the trials that follow from them."""
