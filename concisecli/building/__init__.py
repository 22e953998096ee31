"""From public sources to problems and examples that can be defended. `recipes` is the way in."""
