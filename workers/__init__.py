"""Workers: one file each, found by name. A file whose name starts with an underscore is shared by its neighbours."""
