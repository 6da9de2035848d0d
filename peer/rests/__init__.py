"""When this peer computes nothing by itself: outside its hours, too hot, on battery, while others want the GPU."""
