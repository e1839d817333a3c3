package perf

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

const (
	goalMCPStart = "150" // milliseconds
	goalMCPCall  = "3"   // in addition to its API call
)

// measureMCP measures the waits of agents: the start of `cloud-sandbox mcp`, and the
// time that a call of a tool adds to its API call.
func measureMCP(ctx context.Context, o options, n rounds, report *bench.Report, rivals *rivals) (err error) {
	server, err := startServer(ctx, o, 1, 5)
	if err != nil {
		return err
	}
	defer server.stop()
	key, err := server.client.CreateKey(ctx, v1.KeyRequest{Name: "bench"})
	if err != nil {
		return err
	}
	meter := rivals.meter(server, report, 0)
	over := stdioTo(o, key.Secret)
	err = meter.Rounds(ctx, "MCP: `cloud-sandbox mcp`, from its start to the list of its tools", goalMCPStart, n.Rounds, func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		session, err := connectMCP(ctx, over())
		if err != nil {
			return 0, err
		}
		_, err = session.ListTools(ctx, nil)
		took := time.Since(began)
		return took, errors.Join(err, session.Close())
	})
	for _, way := range []struct {
		name string
		over mcp.Transport
	}{
		{"stdio", over()},
		{"HTTP", &mcp.StreamableClientTransport{Endpoint: server.url + "/mcp?session=bench-mcp", HTTPClient: &http.Client{Transport: withKey{key.Secret}}}},
	} {
		err = errors.Join(err, measureTool(ctx, server.url, key.Secret, way.over, meter, "MCP over "+way.name+": `read_file`, beyond the REST call beneath it", n.Calls))
	}
	return err
}

// stdioTo returns a function that starts `cloud-sandbox mcp`.
func stdioTo(o options, key string) func() mcp.Transport {
	return func() mcp.Transport {
		cmd := exec.Command(o.binary, "mcp", "--session", "bench-mcp")
		cmd.Env = append(os.Environ(), "CLOUD_SANDBOX_URL="+o.url(), "CLOUD_SANDBOX_API_KEY="+key)
		return &mcp.CommandTransport{Command: cmd}
	}
}

func connectMCP(ctx context.Context, over mcp.Transport) (*mcp.ClientSession, error) {
	return mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(ctx, over, nil)
}

// withKey adds an API key to requests.
type withKey struct{ key string }

func (w withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.key)
	return http.DefaultTransport.RoundTrip(r)
}

// measureTool measures pairs of a tool call and the same call over REST.
func measureTool(ctx context.Context, url, key string, over mcp.Transport, meter *bench.Meter, operation string, times int) (err error) {
	session, err := connectMCP(ctx, over)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	tool := func(name string, arguments map[string]any) error {
		result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: arguments})
		if err == nil && result.IsError {
			err = errors.New(result.Content[0].(*mcp.TextContent).Text)
		}
		return err
	}
	if err := tool("write_file", map[string]any{"path": "f", "content": "x\n"}); err != nil {
		return err
	}
	rest := client.New(config.Client{URL: url, Key: key})
	defer rest.Close()
	return meter.Rounds(ctx, operation, goalMCPCall, times, func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		content, _, err := rest.ReadFile(ctx, "bench-mcp", "f")
		if err != nil {
			return 0, err
		}
		read, err := io.ReadAll(content)
		beneath := time.Since(began)
		if err = errors.Join(err, content.Close()); err != nil || !strings.HasPrefix(string(read), "x") {
			return 0, errors.Join(err, errors.New("the file is not what was written"))
		}
		began = time.Now()
		err = tool("read_file", map[string]any{"path": "f"})
		return time.Since(began) - beneath, err
	})
}
