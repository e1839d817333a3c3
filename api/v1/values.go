package v1

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Seconds is a length of time. Its JSON is a number of seconds, more than 0.
type Seconds time.Duration

var secondsType = reflect.TypeFor[Seconds]()

// UnmarshalJSON returns an UnmarshalTypeError of Seconds for any other JSON. The
// decoder, which knows the field's name, makes the error that a client sees.
func (s *Seconds) UnmarshalJSON(raw []byte) error {
	var n float64
	if json.Unmarshal(raw, &n) == nil {
		if d, ok := sandbox.Seconds(n); ok {
			*s = Seconds(d)
			return nil
		}
	}
	return &json.UnmarshalTypeError{Value: string(raw), Type: secondsType}
}

// MarshalJSON returns the number of seconds.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// Duration is zero for nil.
func (s *Seconds) Duration() time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(*s)
}

// NonZero is nil for zero: a field that is absent from the JSON.
func NonZero[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

// SecondsOf is nil for zero.
func SecondsOf(d time.Duration) *Seconds { return NonZero(Seconds(d)) }

// SecondsOrNone is a length of time; 0 or null in JSON mean none.
type SecondsOrNone time.Duration

// UnmarshalJSON fails as Seconds.UnmarshalJSON does.
func (s *SecondsOrNone) UnmarshalJSON(raw []byte) error {
	if text := string(raw); text == "null" || text == "0" {
		*s = 0
		return nil
	}
	return (*Seconds)(s).UnmarshalJSON(raw)
}

// MarshalJSON returns the number of seconds, 0 for none.
func (s SecondsOrNone) MarshalJSON() ([]byte, error) { return Seconds(s).MarshalJSON() }

// Optional is a field of a change. If it is absent, the current value stays. null
// sets the zero value.
type Optional[T any] struct {
	given bool
	value T
}

// Given is a field that is present.
func Given[T any](value T) Optional[T] { return Optional[T]{given: true, value: value} }

// UnmarshalJSON is called only for a field that is present.
func (o *Optional[T]) UnmarshalJSON(raw []byte) error {
	o.given = true
	return json.Unmarshal(raw, &o.value)
}

// MarshalJSON returns the value.
func (o Optional[T]) MarshalJSON() ([]byte, error) { return json.Marshal(o.value) }

// IsZero reports whether the field is absent, for the option omitzero.
func (o Optional[T]) IsZero() bool { return !o.given }

// Pointer is nil for a field that is absent.
func (o *Optional[T]) Pointer() *T {
	if !o.given {
		return nil
	}
	return &o.value
}

// Target names a Sandbox by ID or name. A session and its sandbox have one ID, so both
// fields mean the same.
type Target struct {
	SandboxID string `json:"sandbox_id,omitempty"`
	SessionID string `json:"session_id,omitempty"`
}

// Optional returns the ID or name, or the empty string without one. Two that differ
// are Invalid.
func (t Target) Optional() (string, error) {
	if t.SandboxID != "" && t.SessionID != "" && t.SandboxID != t.SessionID {
		return "", sandbox.Errorf(sandbox.Invalid, "sandbox_id and session_id name different sandboxes")
	}
	return cmp.Or(t.SandboxID, t.SessionID), nil
}

// Required returns the ID or name; Invalid without one.
func (t Target) Required() (string, error) {
	id, err := t.Optional()
	if err == nil && id == "" {
		err = sandbox.Errorf(sandbox.Invalid, "sandbox_id is missing")
	}
	return id, err
}

// Stdin is input for a program, as text or as any bytes.
type Stdin struct {
	Text   *string `json:"stdin,omitempty"`
	Base64 *string `json:"stdin_base64,omitempty"`
}

// StdinOf is input of any bytes; none for nil.
func StdinOf(data []byte) Stdin {
	if data == nil {
		return Stdin{}
	}
	return Stdin{Base64: new(base64.StdEncoding.EncodeToString(data))}
}

// Input returns the input, empty without one. Both forms at once are Invalid.
func (s Stdin) Input() (string, error) {
	switch {
	case s.Text != nil && s.Base64 != nil:
		return "", sandbox.Errorf(sandbox.Invalid, "stdin and stdin_base64 are the same input: leave one out")
	case s.Text != nil:
		return *s.Text, nil
	case s.Base64 == nil:
		return "", nil
	}
	data, err := base64.StdEncoding.DecodeString(*s.Base64)
	if err != nil {
		return "", sandbox.Errorf(sandbox.Invalid, "stdin_base64 is not base64")
	}
	return string(data), nil
}

// Network is a network policy. Its JSON is "public", "none", or an object of mode,
// allow and deny. null is the empty policy: the server's default.
type Network sandbox.NetworkPolicy

// UnmarshalJSON returns Invalid for a policy that is none.
func (n *Network) UnmarshalJSON(raw []byte) error {
	if raw = bytes.TrimSpace(raw); string(raw) == "null" {
		*n = ""
		return nil
	}
	text := string(raw)
	if len(raw) > 0 && raw[0] != '{' {
		var simple string
		if err := json.Unmarshal(raw, &simple); err != nil || simple == "" || simple[0] == '{' {
			text = "" // an invalid policy, for which ParseNetworkPolicy has the error
		} else {
			text = simple
		}
	}
	p, err := sandbox.ParseNetworkPolicy(text)
	*n = Network(p)
	return err
}

// MarshalJSON returns the form that UnmarshalJSON reads.
func (n Network) MarshalJSON() ([]byte, error) { return ShownNetwork(sandbox.NetworkPolicy(n)), nil }

// ShownNetwork is the JSON of a policy; null for the empty one.
func ShownNetwork(p sandbox.NetworkPolicy) json.RawMessage {
	switch {
	case p == "":
		return json.RawMessage("null")
	case p[0] == '{':
		return json.RawMessage(p)
	}
	return json.RawMessage(strconv.Quote(string(p))) // "public" or "none"
}

// PortRules defines who may reach the ports of a sandbox, and how. Its JSON has the
// form of Ports.
type PortRules sandbox.Ingress

// UnmarshalJSON returns Invalid for rules that are none.
func (p *PortRules) UnmarshalJSON(raw []byte) error {
	var body struct {
		Private    bool    `json:"private"`
		Exceptions []int64 `json:"exceptions"`
		Host       string  `json:"host"`
		TLS        []int64 `json:"tls"`
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err := d.Decode(&body)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && (wrong.Field == "exceptions" || wrong.Field == "tls") {
		return sandbox.Errorf(sandbox.Invalid, "ports.%s must be a list of whole numbers", wrong.Field)
	}
	if err != nil {
		return err // the decoder of the whole body names the field
	}
	i, err := sandbox.PortRules(body.Private, body.Exceptions, body.Host, body.TLS)
	*p = PortRules(i)
	return err
}

// MarshalJSON returns the form that UnmarshalJSON reads.
func (p PortRules) MarshalJSON() ([]byte, error) {
	return json.Marshal(PortsOf(sandbox.Ingress(p)))
}

// Ingress is empty for nil: the server's default.
func (p *PortRules) Ingress() sandbox.Ingress {
	if p == nil {
		return ""
	}
	return sandbox.Ingress(*p)
}

// PortsOf are the rules of i.
func PortsOf(i sandbox.Ingress) Ports {
	rules := i.RulesOrClosed()
	return Ports{Private: rules.Private, Exceptions: rules.Exceptions, Host: rules.Host, TLS: rules.TLSPorts}
}

// SecretHosts are the hosts to which a secret may be sent. Its JSON is a list of names.
type SecretHosts sandbox.SecretHosts

// UnmarshalJSON returns Invalid for hosts that are none.
func (h *SecretHosts) UnmarshalJSON(raw []byte) error {
	var hosts []string
	if err := json.Unmarshal(raw, &hosts); err != nil {
		return sandbox.Errorf(sandbox.Invalid, "hosts must be a list of names, such as api.example.com")
	}
	normal, err := sandbox.NewSecretHosts(hosts)
	*h = SecretHosts(normal)
	return err
}

// SecretUses are the uses of secrets in a sandbox. Its JSON is a list of objects; null
// is none.
type SecretUses sandbox.SecretUses

// UnmarshalJSON returns Invalid for uses that are none.
func (u *SecretUses) UnmarshalJSON(raw []byte) error {
	var uses []sandbox.SecretUse
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&uses); err != nil {
		return sandbox.Errorf(sandbox.Invalid, "secrets must be a list of objects of name, host, header and perhaps format, all of them text")
	}
	normal, err := sandbox.NamedSecretUses(uses)
	*u = SecretUses(normal)
	return err
}

// MarshalJSON returns the form that UnmarshalJSON reads.
func (u SecretUses) MarshalJSON() ([]byte, error) {
	if u == "" {
		return []byte("[]"), nil
	}
	return []byte(u), nil
}

// Uses are none for nil.
func (u *SecretUses) Uses() sandbox.SecretUses {
	if u == nil {
		return ""
	}
	return sandbox.SecretUses(*u)
}

// VolumeMount asks for a volume, by name or ID, at a path of a sandbox.
type VolumeMount struct {
	Volume string `json:"volume"`
	Path   string `json:"path"`
}

// VolumeMounts are the volumes that a sandbox asks for; null is none.
type VolumeMounts []VolumeMount

// UnmarshalJSON returns Invalid for mounts that are none.
func (m *VolumeMounts) UnmarshalJSON(raw []byte) error {
	var asked []VolumeMount
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&asked); err != nil {
		return sandbox.Errorf(sandbox.Invalid, "volumes must be a list of objects of volume, a name or ID, and path, both of them text")
	}
	for _, a := range asked {
		if a.Volume == "" {
			return sandbox.Errorf(sandbox.Invalid, "volumes: name the volume to mount at %.100q, by its name or ID", a.Path)
		}
	}
	*m = asked
	return sandbox.CheckVolumeMounts(m.Mounts())
}

// Mounts are none for nil.
func (m *VolumeMounts) Mounts() []sandbox.VolumeMount {
	if m == nil {
		return nil
	}
	mounts := make([]sandbox.VolumeMount, len(*m))
	for i, a := range *m {
		mounts[i] = sandbox.VolumeMount{Volume: a.Volume, Path: a.Path}
	}
	return mounts
}

// SignalName is the name of a signal. Its JSON may also be a number.
type SignalName string

// UnmarshalJSON returns Invalid for another type of JSON.
func (s *SignalName) UnmarshalJSON(raw []byte) error {
	var n int
	if json.Unmarshal(raw, &n) == nil {
		*s = SignalName(strconv.Itoa(n))
		return nil
	}
	var name string
	if err := json.Unmarshal(raw, &name); err != nil {
		return sandbox.Errorf(sandbox.Invalid, "signal must be a name or a number")
	}
	*s = SignalName(name)
	return nil
}
