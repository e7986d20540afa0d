"""The controller: kopf on our own resources, and the loop that carries claims through their life."""
