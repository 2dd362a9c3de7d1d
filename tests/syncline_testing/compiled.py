"""Imported: every loop of ours is compiled, as a sync service has them before it serves anybody."""

from syncline_proto.compiled import compile_all

compile_all()
