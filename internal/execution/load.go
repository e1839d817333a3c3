package execution

import "time"

// Load is what a Sandbox uses at a moment, by the Guest's word.
type Load struct {
	At                    time.Time // by our clock
	CPUs                  int       // that the Guest sees
	CPUPercent            float64   // 100 is one of them
	MemoryUsed, MemoryAll int64     // bytes
	MemoryCache           int64
	DiskUsed, DiskAll     int64
}

// LogEntry is what a program inside logged, by the Guest's word.
type LogEntry struct {
	At             time.Time
	Level, Message string // Level is debug, info, warn or error
	Fields         map[string]string
}
