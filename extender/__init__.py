"""The scheduler extender: a thin FastAPI shell over `fleet`."""
