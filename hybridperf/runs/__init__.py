"""From a step to a run: requests that queue for an engine, pools of them; runs that fail."""
