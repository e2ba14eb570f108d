"""Studies of when parallel reasoning pays, on held-out Countdown problems: one file a study.

The file's name is the study's name. A study lists its conditions and turns the records into tables and plots; running,
resuming and writing are `base.py`'s and `store.py`'s.
"""
