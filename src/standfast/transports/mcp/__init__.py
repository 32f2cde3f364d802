"""Actions as tools of language models, over the Model Context Protocol."""
