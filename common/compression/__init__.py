"""Models as few bytes: codecs of values, and differences to what the other end holds."""
