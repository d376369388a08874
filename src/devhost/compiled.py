"""Runs a Python program, its first argument, and uses and keeps its compiled code as that of modules.

Python itself compiles the file of a program at every start.
"""

import sys
from importlib.machinery import SourceFileLoader

if __name__ == "__main__":
    del sys.argv[0]
    __file__ = sys.argv[0]
    code = SourceFileLoader("__main__", __file__).get_code("__main__")
    assert code is not None
    exec(code)
