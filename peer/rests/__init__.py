"""When this peer computes nothing by itself: outside its hours, on battery, or when a GPU is too hot."""
