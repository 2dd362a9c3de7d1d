"""Child processes of ``syncline up`` and ``syncline demo``: services and replicas on one machine.

Starts programs by their command lines and never imports the services.
"""
