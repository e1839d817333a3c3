package traffic

import (
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Headers that name a port of a Sandbox if the host does not, as E2B's clients send
// them.
const (
	idHeader   = "E2b-Sandbox-Id"
	portHeader = "E2b-Sandbox-Port"
)

// hostLabel matches the first label of a host that names a port of a Sandbox. Old
// clients append a suffix to the ID.
var hostLabel = regexp.MustCompile(`^([0-9]{1,5})-(i[a-z0-9]{20})(?:-[a-z0-9-]*)?$`)

// Target is a port of a Sandbox.
type Target struct {
	SandboxID string // it may lack the form of an ID
	Port      uint16
}

// TargetOf returns the port of a Sandbox to which a request goes, by its host or else
// by its headers; ok is false for a request to this installation itself. Headers that
// name no port are Invalid. For a request whose headers name envd, own reports whether
// it is for this installation anyway.
func TargetOf(r *http.Request, own func(*http.Request) bool) (t Target, ok bool, err error) {
	if t, ok = byHost(r.Host); ok {
		return t, true, t.check()
	}
	ids, ports := r.Header.Values(idHeader), r.Header.Values(portHeader)
	switch {
	case len(ids) == 0 && len(ports) == 0:
		return Target{}, false, nil
	case len(ids) == 0:
		return Target{}, true, sandbox.Errorf(sandbox.Invalid, "Missing header: %s", idHeader)
	case len(ports) == 0:
		return Target{}, true, sandbox.Errorf(sandbox.Invalid, "Missing header: %s", portHeader)
	case len(ids) > 1 || len(ports) > 1:
		return Target{}, true, sandbox.Errorf(sandbox.Invalid, "send %s and %s once", idHeader, portHeader)
	}
	id, _, _ := strings.Cut(ids[0], "-")
	if !alphanumeric(id) {
		return Target{}, true, sandbox.Errorf(sandbox.Invalid, "%s is not the ID of a sandbox", idHeader)
	}
	port, err := strconv.ParseUint(ports[0], 10, 16)
	if err != nil {
		return Target{}, true, sandbox.Errorf(sandbox.Invalid, "%s must be a number from 1 to 65535", portHeader)
	}
	t = Target{SandboxID: id, Port: uint16(port)}
	if t.Port == sandbox.EnvdPort && own(r) {
		return Target{}, false, nil
	}
	return t, true, t.check()
}

func byHost(hostport string) (Target, bool) {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	label, domain, dotted := strings.Cut(strings.ToLower(host), ".")
	m := hostLabel.FindStringSubmatch(label)
	if m == nil || !dotted || domain == "" {
		return Target{}, false
	}
	port, err := strconv.ParseUint(m[1], 10, 16)
	if err != nil {
		port = 0 // which check refuses
	}
	return Target{SandboxID: m[2], Port: uint16(port)}, true
}

func (t Target) check() error {
	if t.Port == 0 {
		return sandbox.Errorf(sandbox.Invalid, "a port is a number from 1 to 65535")
	}
	return nil
}

func alphanumeric(s string) bool {
	const maxID = 64
	if s == "" || len(s) > maxID {
		return false
	}
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
