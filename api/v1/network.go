package v1

import "time"

// Ports defines who may reach the ports of a sandbox, and how.
type Ports struct {
	Private    bool     `json:"private"`              // ports need a token
	Exceptions []uint16 `json:"exceptions,omitempty"` // ports with the opposite of Private
	Host       string   `json:"host,omitempty"`       // that programs inside see as the Host header; empty: the real one
	TLS        []uint16 `json:"tls,omitempty"`        // ports on which programs inside speak TLS
}

// Listener is a TCP port on which a program in a sandbox listens.
type Listener struct {
	Port     uint16 `json:"port"`
	Address  string `json:"address"`
	Loopback bool   `json:"loopback"`
	PID      int64  `json:"pid,omitempty"`
	Process  string `json:"process,omitempty"`
	Agent    bool   `json:"agent"` // of the sandbox's own agent
	Private  bool   `json:"private"`
	TLS      bool   `json:"tls"`
	URL      string `json:"url,omitempty"` // empty: it has no host name
}

// Listeners are the listening ports of a sandbox.
type Listeners struct {
	Ports     []Listener `json:"ports"`
	Truncated bool       `json:"truncated"` // there are more
}

// Port is the access to a port, whether a program listens on it or not.
type Port struct {
	Port    uint16 `json:"port"`
	Private bool   `json:"private"`
	TLS     bool   `json:"tls"`
	URL     string `json:"url,omitempty"` // empty: it has no host name
}

// PortLink opens one port of a sandbox until it expires.
type PortLink struct {
	URL       string    `json:"url,omitempty"` // empty: the port has no host name, only the token
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

// SignedURL opens one file of a sandbox until it expires.
type SignedURL struct {
	URL       string    `json:"url"`
	Method    string    `json:"method"`
	ExpiresAt time.Time `json:"expires_at"`
}

// NetworkLog holds the decisions of a sandbox's network policy, oldest first.
type NetworkLog struct {
	Decisions []NetworkDecision `json:"decisions"` // the ones still kept
	Allowed   int64             `json:"allowed"`   // total number
	Refused   int64             `json:"refused"`
}

// NetworkDecision is one decision, which was made Count times.
type NetworkDecision struct {
	Seq      int64     `json:"seq"`
	FirstAt  time.Time `json:"first_at"`
	LastAt   time.Time `json:"last_at"`
	Count    int64     `json:"count"`
	Protocol string    `json:"protocol"`
	Name     string    `json:"name,omitempty"` // empty: the connection named no host
	Address  string    `json:"address,omitempty"`
	Port     uint16    `json:"port"`
	Verdict  string    `json:"verdict"` // "allowed" or "refused"
	Reason   string    `json:"reason"`
}
