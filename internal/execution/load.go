package execution

import "time"

// Load is a Sandbox's resource use at a moment, as the Guest claims.
type Load struct {
	At                    time.Time // by our clock
	CPUs                  int       // visible to the Guest
	CPUPercent            float64   // 100 is one CPU
	MemoryUsed, MemoryAll int64     // bytes
	MemoryCache           int64
	DiskUsed, DiskAll     int64
}

// LogEntry was logged by a program inside, as the Guest claims.
type LogEntry struct {
	At             time.Time
	Level, Message string // Level is debug, info, warn or error
	Fields         map[string]string
}
