"""Sets of tasks that volunteers contribute: checked before any other peer hears of them."""
