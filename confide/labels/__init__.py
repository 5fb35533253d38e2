"""Labels: draw turns for people to read, import what they marked, settle their differences."""
