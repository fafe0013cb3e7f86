"""Which devices there are: their names, who is connected, who may join, and who is there twice."""
