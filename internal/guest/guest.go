// Package guest holds the definitions that the Guest and its clients share. The
// Guest is the agent that is PID 1 inside every Sandbox; it is in guest/server, its
// client in guest/client.
package guest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

// Hostname of every Sandbox.
const Hostname = "sandbox"

// restoredPrefix begins the hostname of a Boot that was restored.
const restoredPrefix = "restored-"

// RestoredHostname is the hostname of a Boot from its restore to Bind: it tells the
// Guest that the Boot was restored, and when it was saved. Nothing else in the Boot
// runs while it has that name.
func RestoredHostname(savedAt time.Time) string {
	return restoredPrefix + strconv.FormatInt(savedAt.UnixNano(), 10)
}

// RestoredLater is the RestoredHostname of a Boot whose sentry did not know yet
// which state it would restore. Its Guest learns the time of the save later.
const RestoredLater = restoredPrefix + "later"

// SavedAt reads a RestoredHostname; false for any other name. The time is zero for
// RestoredLater.
func SavedAt(hostname string) (time.Time, bool) {
	text, restored := strings.CutPrefix(hostname, restoredPrefix)
	if !restored || hostname == RestoredLater {
		return time.Time{}, restored
	}
	nanos, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(0, nanos), err == nil
}

// Version of the Guest's control service.
const Version = "1"

// A stream to a port of a Boot's loopback is requested as an upgrade on the control
// port, GET ForwardPath?port=N.
const (
	ForwardPath     = "/forward"
	ForwardProtocol = "cloud-sandbox-forward"
)

// FilesPath on the control port reads and writes the contents of single files as plain
// HTTP: GET FilesPath?path=P with ranges and conditions, and PUT FilesPath?path=P with
// the whole content, whose answer is a FileEntry of guestv1. An error is JSON with the
// field message.
const FilesPath = "/files"

// LogsPath on the control port returns the log entries that programs of the Sandbox
// sent to the events address, as a JSON list of LogEntry, oldest first: at most
// MaxLogs, each of at most MaxLog bytes with at most MaxLogFields fields.
const (
	LogsPath     = "/logs"
	MaxLogs      = 500
	MaxLog       = 16 << 10
	MaxLogFields = 32
)

// LogEntry is one log entry of a program.
type LogEntry struct {
	UnixMillis int64             `json:"at"`
	Level      string            `json:"level"`
	Message    string            `json:"message"`
	Fields     map[string]string `json:"fields,omitempty"`
}

// EventsName is the name of the events address inside the Sandbox.
const EventsName = "events.e2b.local"

// AccessToken derives the token for the E2B services inside a Sandbox: the hex
// HMAC-SHA256 of its ID. It never changes for an ID and is not stored.
func AccessToken(seed []byte, sandboxID string) string {
	mac := hmac.New(sha256.New, seed)
	mac.Write([]byte(sandboxID))
	return hex.EncodeToString(mac.Sum(nil))
}

// TrafficToken derives the token that opens the private ports of a Sandbox, as
// AccessToken does: no Guest knows it.
func TrafficToken(seed []byte, sandboxID string) string {
	return AccessToken(seed, "sandbox-traffic-"+sandboxID)
}

// TemplateFile is the path in a Template's image of its description, a Template in
// JSON. An image may lack it.
const TemplateFile = "/etc/cloud-sandbox/template.json"

// StartLog is the file for the output of a Template's start command.
const StartLog = "/var/log/start.log"

// Template configures the Guest in every Sandbox of a Template.
type Template struct {
	Env map[string]string `json:"env,omitempty"` // environment of Processes, with the lowest precedence
	// Start is a shell command that runs in the background from Bind on, as the
	// default user.
	Start string `json:"start,omitempty"`
	// Ready is a shell command that is tried until it succeeds, before the
	// Sandbox is given to its owner.
	Ready string `json:"ready,omitempty"`
}
