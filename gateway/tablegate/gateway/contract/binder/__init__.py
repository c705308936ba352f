"""The binder: a descriptor set becomes a catalogue, or a list of everything that is wrong with it."""
