"""A stand-in of HAMi's scheduler extender and device plugin, for tests only: the product never imports it."""
