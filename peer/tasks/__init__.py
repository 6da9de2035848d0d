"""Sets of tasks that volunteers contribute: checked before anybody hears of them."""
