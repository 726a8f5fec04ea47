"""How an attempt ended: `conclusion` gathers evidence, `verdict` judges, `afterwards` adds what is known only later."""
