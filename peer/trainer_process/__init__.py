"""The trainer as a child process: started, watched, restarted, and spoken to."""
