"""A package, so that no installed package that is called ``tests`` hides it."""
