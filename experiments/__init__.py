"""What was asked and measured: a folder for each question, with its code (`run.py`), its page and the data behind it.

A folder imports itself and `_tools`, which holds what several use, and no other folder.
"""
