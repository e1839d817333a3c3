package cli

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

type createOptions struct {
	new           creation
	reuse         bool
	timeout, idle seconds
	checkpoint    seconds
	env, metadata pairs
	cwd, user     string
	secrets       secretUses
	private       bool

	onTimeout, snapshot string
}

func (a *app) createCommand() *cobra.Command {
	o := createOptions{env: pairs{getenv: a.getenv}}
	cmd := &cobra.Command{
		Use:   "create [NAME]",
		Short: "Create a sandbox and print its ID",
		Long: `Create a sandbox and print its ID. It pauses by itself after --timeout, half an
hour unless said, and wakes when it is used; rm ends it. All commands take its
NAME as well as its ID.`,
		Example: `  cloud-sandbox create my-agent --timeout 2h
  cloud-sandbox create ci --if-exists --idle-timeout 10m --metadata team=blue
  box=$(cloud-sandbox create --network none --memory-mb 1024)
  cloud-sandbox create bot --secret 'API_KEY@api.example.com=Authorization: Bearer {value}'
  cloud-sandbox create preview --private-ports
  cloud-sandbox create worker --volume datasets:/data
  cloud-sandbox create long-run --checkpoint-every 5m
  cloud-sandbox create again --snapshot before-refactoring
  cloud-sandbox create fetcher --allow pypi.org --allow '*.pythonhosted.org:443'
  cloud-sandbox create crawler --deny 203.0.113.0/24`,
		Args: Args(0, 1, "at most one NAME"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			s, err := c.Create(cmd.Context(), o.request(args))
			if err != nil {
				return err
			}
			return printMade(cmd, s, s.ID)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.BoolVar(&o.reuse, "if-exists", false, "return the existing sandbox of that name, if it exists")
	f.Var(&o.timeout, "timeout", "pause it after this time (default 30m)")
	f.Var(&o.idle, "idle-timeout", "pause it after this time without use")
	f.Var(&o.checkpoint, "checkpoint-every", "checkpoint interval; after a failure of its machine it continues from the last checkpoint")
	f.StringVar(&o.onTimeout, "on-timeout", "", "action on timeout: pause, pause_files (without memory) or end (default pause)")
	f.StringVar(&o.snapshot, "snapshot", "", "start from this snapshot, by ID or name; a name means its newest snapshot")
	f.VarP(&o.env, "env", "e", "set an environment variable of all its programs; KEY alone copies the local variable")
	f.Var(&o.metadata, "metadata", "label it, to find it with ls")
	f.Var(&o.secrets, "secret", "NAME@HOST=HEADER[: FORMAT]: set this header in its HTTPS requests to HOST, with the value of the secret NAME, which stays outside")
	f.BoolVar(&o.private, "private-ports", false, "require a token for its ports; link makes one")
	f.StringVar(&o.cwd, "cwd", "", "folder that its programs run in (default /workspace)")
	f.StringVar(&o.user, "user", "", "user that its programs run as (default user)")
	o.new.register(cmd)
	_ = cmd.RegisterFlagCompletionFunc("template", a.templates)
	_ = cmd.RegisterFlagCompletionFunc("snapshot", a.snapshots)
	_ = cmd.RegisterFlagCompletionFunc("secret", a.secretUse)
	_ = cmd.RegisterFlagCompletionFunc("on-timeout", cobra.FixedCompletions([]string{"pause", "pause_files", "end"}, cobra.ShellCompDirectiveNoFileComp))
	clientFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("volume", a.mounted)
	return cmd
}

func (o *createOptions) request(args []string) v1.CreateRequest {
	r, _ := o.new.requested()
	r.TimeoutSeconds, r.IdleTimeoutSeconds = v1.SecondsOf(o.timeout.duration()), v1.SecondsOrNone(o.idle.duration())
	r.Env, r.Metadata, r.Cwd, r.User = o.env.values, o.metadata.values, o.cwd, o.user
	r.OnTimeout, r.SnapshotID, r.CheckpointEverySeconds = sandbox.OnTimeout(o.onTimeout), o.snapshot, v1.SecondsOrNone(o.checkpoint.duration())
	r.Secrets = o.secrets.uses()
	if o.private {
		r.Ports = new(v1.PortRules(`{"private":true}`))
	}
	if len(args) > 0 {
		r.Name = args[0]
	}
	if o.reuse {
		r.IfExists = sandbox.IfExistsReturn
	}
	return r
}

// secretUses is a flag that may be given several times, NAME@HOST=HEADER[: FORMAT]
// each.
type secretUses []sandbox.SecretUse

func (u *secretUses) String() string { return "" }

func (u *secretUses) Type() string { return "use" }

func (u *secretUses) Set(text string) error {
	name, rest, ok := strings.Cut(text, "@")
	host, header, hosted := strings.Cut(rest, "=")
	header, format, _ := strings.Cut(header, ":")
	if !ok || !hosted || name == "" || host == "" || header == "" {
		return errors.New("write NAME@HOST=HEADER, or NAME@HOST=HEADER: FORMAT with {value} in it")
	}
	*u = append(*u, sandbox.SecretUse{Secret: name, Host: host, Header: header, Format: strings.TrimSpace(format)})
	return nil
}

// uses is nil for none. The server checks them.
func (u secretUses) uses() *v1.SecretUses {
	if len(u) == 0 {
		return nil
	}
	text, err := json.Marshal([]sandbox.SecretUse(u))
	if err != nil {
		return nil // text always becomes JSON
	}
	return new(v1.SecretUses(text))
}
