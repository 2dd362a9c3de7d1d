"""Callbacks for the loops of others: Hugging Face ``Trainer`` and Lightning.

Each is a module of its own, which alone imports that library.
"""
