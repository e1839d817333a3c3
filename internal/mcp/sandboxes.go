package mcp

import (
	"context"
	"fmt"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

const maxListed = 100

type createSandboxInput struct {
	Name        string            `json:"name,omitempty" jsonschema:"a name for it, of a-z, 0-9, dots, dashes and underscores"`
	Template    string            `json:"template,omitempty" jsonschema:"template to start from, base by default"`
	Snapshot    string            `json:"snapshot_id,omitempty" jsonschema:"ID or name of a snapshot to start from instead"`
	Timeout     *float64          `json:"timeout_seconds,omitempty" jsonschema:"after how many seconds it pauses, 1800 by default"`
	IdleTimeout *float64          `json:"idle_timeout_seconds,omitempty" jsonschema:"after how many seconds without use it pauses; never by default"`
	Env         map[string]string `json:"env,omitempty" jsonschema:"environment variables of its programs"`
	CPUs        *float64          `json:"cpus,omitempty" jsonschema:"how many processors it may use, 1 by default"`
	MemoryMB    *int64            `json:"memory_mb,omitempty" jsonschema:"its memory in MiB, 512 by default"`
	DiskMB      *int64            `json:"disk_mb,omitempty" jsonschema:"its disk in MiB, 4096 by default"`
	NoNetwork   bool              `json:"no_network,omitempty" jsonschema:"whether it has no network"`
	UseHere     bool              `json:"use_for_session,omitempty" jsonschema:"whether it becomes this session's own sandbox"`
}

type listSandboxesInput struct {
	State string `json:"state,omitempty" jsonschema:"only those in this state, for example running or paused; all but ended ones by default"`
}

type sandboxInput struct {
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"ID or name of another sandbox than this session's own"`
}

type forkInput struct {
	sandboxInput
	Count *int `json:"count,omitempty" jsonschema:"how many copies, 1 by default and 100 at most"`
}

type snapshotInput struct {
	sandboxInput
	Name string `json:"name,omitempty" jsonschema:"a name to find the snapshot by"`
}

type rollbackInput struct {
	sandboxInput
	Snapshot string `json:"snapshot_id" jsonschema:"ID or name of a snapshot of this sandbox"`
}

type killSandboxInput struct {
	SandboxID string `json:"sandbox_id" jsonschema:"ID or name of the sandbox to end"`
}

type previewInput struct {
	sandboxInput
	Port uint16 `json:"port" jsonschema:"the TCP port that a program in the sandbox listens on"`
}

func sandboxTools() []tool {
	return append([]tool{
		define(tool{
			name: "create_sandbox", title: "Create a sandbox",
			description: "Creates another sandbox and returns its ID. It is not needed for a first sandbox: the other tools create this session's own one by themselves.",
			calls:       []*catalogue.Operation{catalogue.CreateSession}, outside: true,
		}, func(ctx context.Context, c *call, in createSandboxInput) (*sdk.CallToolResult, error) {
			request, err := in.request()
			if err != nil {
				return nil, err
			}
			sb, err := c.client.Create(ctx, request)
			if err != nil {
				return nil, err
			}
			if in.UseHere {
				c.use(sb.ID)
			}
			return object(viewOf(sb))
		}),
		define(tool{
			name: "list_sandboxes", title: "List sandboxes",
			description: "Lists the sandboxes of this account, newest first, and says which one is this session's own.",
			calls:       []*catalogue.Operation{catalogue.ListSessions},
		}, func(ctx context.Context, c *call, in listSandboxesInput) (*sdk.CallToolResult, error) {
			states := []string{"starting", "running", "pausing", "paused", "resuming"}
			if in.State != "" {
				states = []string{in.State}
			}
			all, err := c.client.List(ctx, states, nil, maxListed)
			if err != nil {
				return nil, err
			}
			list := struct {
				Own       string        `json:"own_sandbox_id,omitempty"`
				Sandboxes []sandboxView `json:"sandboxes"`
			}{c.known(), []sandboxView{}}
			for _, sb := range all {
				list.Sandboxes = append(list.Sandboxes, viewOf(sb))
			}
			return object(list)
		}),
		define(tool{
			name: "kill_sandbox", title: "End a sandbox",
			description: "Ends a sandbox for good: its programs and files are lost.",
			calls:       []*catalogue.Operation{catalogue.DeleteSession}, destroys: true, repeats: true,
		}, func(ctx context.Context, c *call, in killSandboxInput) (*sdk.CallToolResult, error) {
			sb, err := c.client.End(ctx, in.SandboxID)
			if err != nil {
				return nil, err
			}
			if c.known() == sb.ID {
				c.use("")
			}
			return text(fmt.Sprintf("The sandbox %s has ended.", sb.ID)), nil
		}),
		define(tool{
			name: "get_preview_url", title: "Get the URL of a port",
			description: "Returns the URL under which a port of the sandbox is reached from outside, for example the port of a web server.",
			calls:       []*catalogue.Operation{catalogue.GetPort},
		}, func(ctx context.Context, c *call, in previewInput) (*sdk.CallToolResult, error) {
			id, err := c.sandbox(ctx, in.SandboxID)
			if err != nil {
				return nil, err
			}
			p, err := c.client.GetPort(ctx, id, in.Port)
			if err != nil {
				return nil, err
			}
			return object(p)
		}),
	}, savingTools()...)
}

// savingTools save the state of Sandboxes and go back to it.
func savingTools() []tool {
	return []tool{
		moving(tool{
			name: "pause_sandbox", title: "Pause a sandbox", repeats: true,
			description: "Saves a sandbox with its running programs and stops it. Using it again resumes it.",
			calls:       []*catalogue.Operation{catalogue.PauseSession},
		}, func(ctx context.Context, c *client.Client, id string) (v1.Sandbox, error) {
			return c.Pause(ctx, id, false)
		}),
		moving(tool{
			name: "resume_sandbox", title: "Resume a sandbox", repeats: true,
			description: "Continues a paused sandbox where it stopped.",
			calls:       []*catalogue.Operation{catalogue.ResumeSession},
		}, func(ctx context.Context, c *client.Client, id string) (v1.Sandbox, error) {
			return c.Resume(ctx, id, false)
		}),
		define(tool{
			name: "fork_sandbox", title: "Copy a sandbox",
			description: "Makes running copies of a sandbox, with its files and running programs, and returns their IDs. The original does not change.",
			calls:       []*catalogue.Operation{catalogue.ForkSession}, outside: true,
		}, func(ctx context.Context, c *call, in forkInput) (*sdk.CallToolResult, error) {
			id, err := c.sandbox(ctx, in.SandboxID)
			if err != nil {
				return nil, err
			}
			forks, err := c.client.Fork(ctx, id, v1.ForkRequest{Count: in.Count})
			if err != nil {
				return nil, err
			}
			return object(map[string]any{"forks": forkViews(forks)})
		}),
		define(tool{
			name: "create_snapshot", title: "Save a sandbox",
			description: "Saves the state of a sandbox, files and running programs, and returns the ID of the snapshot. rollback goes back to it; create_sandbox starts another sandbox from it.",
			calls:       []*catalogue.Operation{catalogue.TakeSnapshot},
		}, func(ctx context.Context, c *call, in snapshotInput) (*sdk.CallToolResult, error) {
			id, err := c.sandbox(ctx, in.SandboxID)
			if err != nil {
				return nil, err
			}
			s, err := c.client.TakeSnapshot(ctx, id, in.Name, false)
			if err != nil {
				return nil, err
			}
			return object(map[string]any{"snapshot_id": s.ID, "name": s.Name, "size_bytes": s.SizeBytes, "created_at": s.CreatedAt})
		}),
		define(tool{
			name: "rollback", title: "Go back to a snapshot",
			description: "Puts a sandbox back into the state of one of its snapshots. Later changes are lost.",
			calls:       []*catalogue.Operation{catalogue.RollbackSession}, destroys: true, repeats: true,
		}, func(ctx context.Context, c *call, in rollbackInput) (*sdk.CallToolResult, error) {
			id, err := c.sandbox(ctx, in.SandboxID)
			if err != nil {
				return nil, err
			}
			sb, err := c.client.Rollback(ctx, id, in.Snapshot)
			if err != nil {
				return nil, err
			}
			return object(viewOf(sb))
		}),
	}
}

// moving completes a tool that changes the state of a Sandbox.
func moving(t tool, move func(context.Context, *client.Client, string) (v1.Sandbox, error)) tool {
	return define(t, func(ctx context.Context, c *call, in sandboxInput) (*sdk.CallToolResult, error) {
		id, err := c.sandbox(ctx, in.SandboxID)
		if err != nil {
			return nil, err
		}
		sb, err := move(ctx, c.client, id)
		if err != nil {
			return nil, err
		}
		return object(viewOf(sb))
	})
}

func (in createSandboxInput) request() (r v1.CreateRequest, err error) {
	r = v1.CreateRequest{Name: in.Name, Template: in.Template, SnapshotID: in.Snapshot, Env: in.Env, Metadata: map[string]string{metadataKey: "tool"}}
	if r.TimeoutSeconds, err = seconds("timeout_seconds", in.Timeout); err != nil {
		return r, err
	}
	idle, err := secondsOrNone("idle_timeout_seconds", in.IdleTimeout)
	if err != nil {
		return r, err
	}
	if idle != nil {
		r.IdleTimeoutSeconds = *idle
	}
	if size := (v1.Resources{CPUs: in.CPUs, MemoryMB: in.MemoryMB, DiskMB: in.DiskMB}); size != (v1.Resources{}) {
		r.Resources = &size
	}
	if in.NoNetwork {
		r.Network = v1.Network(sandbox.NetworkNone)
	}
	return r, nil
}

// sandboxView is the description of a Sandbox for a model.
type sandboxView struct {
	ID        string        `json:"sandbox_id,omitempty"`
	Name      string        `json:"name,omitempty"`
	State     sandbox.State `json:"state,omitempty"`
	Template  string        `json:"template,omitempty"`
	CreatedAt time.Time     `json:"created_at,omitzero"`
	Error     string        `json:"error,omitempty"` // of a copy that failed
}

func viewOf(sb v1.Sandbox) sandboxView {
	return sandboxView{ID: sb.ID, Name: sb.Name, State: sb.State, Template: sb.Template, CreatedAt: sb.CreatedAt}
}

func forkViews(forks []v1.Fork) []sandboxView {
	all := make([]sandboxView, len(forks))
	for i, f := range forks {
		if f.Error != nil {
			all[i].Error = f.Error.Error()
			continue
		}
		all[i] = viewOf(*f.Sandbox)
	}
	return all
}
