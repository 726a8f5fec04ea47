"""How an attempt ended: `finish` gathers the evidence, `verdict` judges, `afterwards` adds what is known only later."""
