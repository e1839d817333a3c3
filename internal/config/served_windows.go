package config

// Served reports whether a server uses the data folder now: none runs on Windows.
func Served(string) bool { return false }
