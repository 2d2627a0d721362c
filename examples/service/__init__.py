"""An agent behind HTTP, with a person's approval by signed webhook."""
