"""The commands of ``crtbook``, one file each, as those of :mod:`confide.commands`."""
