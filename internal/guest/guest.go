// Package guest holds what both ends of the conversation with the Guest know:
// the agent that is PID 1 inside every Sandbox. The agent itself is in
// guest/server, its client in guest/client.
package guest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// Hostname of every Sandbox.
const Hostname = "sandbox"

// Version of the Guest's control service.
const Version = "1"

// AccessToken derives the token for the E2B services inside a Sandbox: the hex
// HMAC-SHA256 of its ID. It is the same for an ID for ever and stored nowhere.
func AccessToken(seed []byte, sandboxID string) string {
	mac := hmac.New(sha256.New, seed)
	mac.Write([]byte(sandboxID))
	return hex.EncodeToString(mac.Sum(nil))
}
