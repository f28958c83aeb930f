"""Looks into ranks that live: an expression on all of them, a console or a debugger on one."""
