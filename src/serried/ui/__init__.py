"""What people see. `console` is the only place that knows rich."""
