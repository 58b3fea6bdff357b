"""Pictures: films, filmstrips and figures from episodes and arrays; nothing here runs a model."""
