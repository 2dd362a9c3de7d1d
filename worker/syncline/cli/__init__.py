"""The command line. Imports torch and transformers only inside the commands that need them."""
