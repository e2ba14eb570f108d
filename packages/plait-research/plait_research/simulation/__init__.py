"""The same machine under virtual time, with modelled engines in place of workers."""
