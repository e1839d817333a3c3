package cli

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// seconds is a flag for a length of time: a number of seconds, or 1m30s.
type seconds float64

func (s seconds) duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

func (s *seconds) String() string {
	if *s == 0 {
		return ""
	}
	return time.Duration(float64(*s) * float64(time.Second)).String()
}

func (s *seconds) Type() string { return "time" }

func (s *seconds) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("write it as seconds (90), or with units (1m30s)")
		}
		n = d.Seconds()
	}
	if !(n >= time.Nanosecond.Seconds()) || n > math.MaxInt32 {
		return fmt.Errorf("it must be more than 0")
	}
	*s = seconds(n)
	return nil
}

// pairs is a flag K=V that may be given several times.
type pairs struct {
	values map[string]string
	getenv func(string) string // for K alone; nil: K alone is refused
}

func (p *pairs) String() string { return "" }
func (p *pairs) Type() string   { return "KEY=VALUE" }

func (p *pairs) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if key == "" {
		return fmt.Errorf("write it as KEY=VALUE")
	}
	if !ok {
		if p.getenv == nil {
			return fmt.Errorf("write it as KEY=VALUE")
		}
		if value = p.getenv(key); value == "" {
			return fmt.Errorf("%s is not set here: write it as KEY=VALUE", key)
		}
	}
	if p.values == nil {
		p.values = map[string]string{}
	}
	p.values[key] = value
	return nil
}

// creation holds the flags that describe a new sandbox.
type creation struct {
	request v1.CreateRequest
	size    struct {
		cpus         float64
		memory, disk int64 // MiB
	}
	volumes volumeMounts
	network struct {
		Mode  string   `json:"mode"`
		Allow []string `json:"allow,omitempty"`
		Deny  []string `json:"deny,omitempty"`
	}
}

func (n *creation) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&n.request.Template, "template", "", "template of a new sandbox (default base)")
	f.StringVar(&n.network.Mode, "network", "", "network of a new sandbox: public or none (default none with --allow, public with --deny alone, otherwise the server's default)")
	f.StringSliceVar(&n.network.Allow, "allow", nil, "let a new sandbox connect to this: example.com, *.example.com, an address or CIDR, * for any, each perhaps with :PORT or :FROM-TO; may be repeated")
	f.StringSliceVar(&n.network.Deny, "deny", nil, "refuse this, written as for --allow; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("network", cobra.FixedCompletions([]string{"public", "none"}, cobra.ShellCompDirectiveNoFileComp))
	f.Float64Var(&n.size.cpus, "cpus", 0, "share of cores of a new sandbox (default 1)")
	f.Int64Var(&n.size.memory, "memory-mb", 0, "memory of a new sandbox in MiB (default 512)")
	f.Int64Var(&n.size.disk, "disk-mb", 0, "disk of a new sandbox in MiB (default 4096)")
	f.Var(&n.volumes, "volume", "VOLUME:PATH: mount this volume there in a new sandbox; may be given several times")
}

// requested returns the request, and whether any flag sets a part of it.
func (n *creation) requested() (v1.CreateRequest, bool) {
	r := n.request
	if size := (v1.Resources{CPUs: v1.NonZero(n.size.cpus), MemoryMB: v1.NonZero(n.size.memory), DiskMB: v1.NonZero(n.size.disk)}); size != (v1.Resources{}) {
		r.Resources = &size
	}
	if len(n.volumes) > 0 {
		r.Volumes = (*v1.VolumeMounts)(&n.volumes)
	}
	r.Network = n.policy()
	return r, r.Template != "" || r.Network != "" || r.Resources != nil || r.Volumes != nil
}

// policy returns the policy that --network, --allow and --deny describe; empty: none
// given. If only lists are given, other destinations get the stricter default that
// fits: "none" with --allow, or else "public". The server checks it.
func (n *creation) policy() v1.Network {
	p := n.network
	switch {
	case p.Mode == "" && len(p.Allow)+len(p.Deny) == 0:
		return ""
	case p.Mode == "" && len(p.Allow) > 0:
		p.Mode = "none"
	case p.Mode == "":
		p.Mode = "public"
	}
	text, err := json.Marshal(p)
	if err != nil {
		return "" // text always becomes JSON
	}
	return v1.Network(text)
}

// named returns the flags of creation that were given, for a sentence.
func (n *creation) named(cmd *cobra.Command) []string {
	var names []string
	for _, name := range []string{"template", "network", "allow", "deny", "cpus", "memory-mb", "disk-mb", "volume"} {
		if cmd.Flags().Changed(name) {
			names = append(names, "--"+name)
		}
	}
	return names
}

// Args returns a check of the number of arguments, from least to most; a negative
// most is no bound.
func Args(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if len(given) >= least && (most < 0 || len(given) <= most) {
			return nil
		}
		return usagef("%s takes %s; see `%s --help`", cmd.CommandPath(), what, cmd.CommandPath())
	}
}
