package mcp

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

const (
	// progressEvery is the interval of progress notifications to a client that asked for
	// them.
	progressEvery = time.Second
	// maxImages and maxImage bound the pictures of one result, the latter in bytes.
	maxImages = 8
	maxImage  = 4 << 20
)

type runCodeInput struct {
	Code      string   `json:"code" jsonschema:"the code to run"`
	Language  string   `json:"language,omitempty" jsonschema:"python (the default), javascript, typescript or bash; go, ruby, java, r, c, cpp or rust where the sandbox has them"`
	Timeout   *float64 `json:"timeout_seconds,omitempty" jsonschema:"after how many seconds the code is ended: 60 by default and 3600 at most"`
	Cwd       string   `json:"cwd,omitempty" jsonschema:"the working directory; /workspace by default"`
	SandboxID string   `json:"sandbox_id,omitempty" jsonschema:"ID or name of another sandbox than this session's own"`
}

type runCommandInput struct {
	Command   string   `json:"command" jsonschema:"the command, for bash"`
	Timeout   *float64 `json:"timeout_seconds,omitempty" jsonschema:"after how many seconds the command is ended: 60 by default and 3600 at most"`
	Cwd       string   `json:"cwd,omitempty" jsonschema:"the working directory; /workspace by default"`
	SandboxID string   `json:"sandbox_id,omitempty" jsonschema:"ID or name of another sandbox than this session's own"`
}

func runTools() []tool {
	return []tool{
		define(tool{
			name: "run_code", title: "Run code",
			description: "Runs code and returns its output, the value of its last expression, and plots as images. Python, JavaScript and TypeScript keep variables and imports from one call to the next.",
			calls:       []*catalogue.Operation{catalogue.Execute}, destroys: true, outside: true,
		}, func(ctx context.Context, c *call, in runCodeInput) (*sdk.CallToolResult, error) {
			language := in.Language
			if language == "" {
				language = "python"
			}
			return c.executeFor(ctx, in.SandboxID, in.Timeout, v1.ExecuteRequest{Code: in.Code, Language: language, Cwd: in.Cwd})
		}),
		define(tool{
			name: "run_command", title: "Run a command",
			description: "Runs a bash command to its end and returns its output and exit code. Each call is a new shell. Use start_process for a program that keeps running, such as a server.",
			calls:       []*catalogue.Operation{catalogue.Execute}, destroys: true, outside: true,
		}, func(ctx context.Context, c *call, in runCommandInput) (*sdk.CallToolResult, error) {
			return c.executeFor(ctx, in.SandboxID, in.Timeout, v1.ExecuteRequest{Code: in.Command, Language: "bash", Cwd: in.Cwd})
		}),
	}
}

// seconds converts an argument in seconds, by the rule that requests of the API follow.
// Nil stays nil: the server has a default.
func seconds(name string, n *float64) (*v1.Seconds, error) {
	if n == nil {
		return nil, nil
	}
	d, ok := sandbox.Seconds(*n)
	if !ok {
		return nil, sandbox.NotSeconds(name, strconv.FormatFloat(*n, 'g', -1, 64))
	}
	return new(v1.Seconds(d)), nil
}

// secondsOrNone is seconds for an argument that may be 0.
func secondsOrNone(name string, n *float64) (*v1.SecondsOrNone, error) {
	if n != nil && *n == 0 {
		return new(v1.SecondsOrNone(0)), nil
	}
	s, err := seconds(name, n)
	return (*v1.SecondsOrNone)(s), err
}

// executeFor is execute with the argument timeout_seconds.
func (c *call) executeFor(ctx context.Context, named string, timeout *float64, r v1.ExecuteRequest) (_ *sdk.CallToolResult, err error) {
	if r.TimeoutSeconds, err = secondsOrNone("timeout_seconds", timeout); err != nil {
		return nil, err
	}
	return c.execute(ctx, named, r)
}

// execute runs r to its end. The end of ctx ends the running code.
func (c *call) execute(ctx context.Context, named string, r v1.ExecuteRequest) (*sdk.CallToolResult, error) {
	id, err := c.sandbox(ctx, named)
	if err != nil {
		return nil, err
	}
	r.Target, r.MaxOutputBytes = v1.Target{SandboxID: id}, new(1) // the events carry all of it
	var out output
	stop := c.tellProgress(ctx, out.lastLine)
	result, err := c.client.Stream(ctx, client.ExecuteRequest{ExecuteRequest: r}, out.add)
	stop()
	if err != nil {
		if ctx.Err() != nil && out.process != "" {
			c.endNow(ctx, id, out.process)
		}
		return nil, err
	}
	if len(result.Results) > 0 && len(out.values) == 0 {
		out.values = result.Results
	}
	return out.result(result), nil
}

// endTime is the timeout for ending a program whose call was cancelled.
const endTime = 5 * time.Second

// endNow ends a process whose call was cancelled, and waits for its end. The server
// would end it by itself shortly after its client has left, but the Sandbox may be
// paused before that.
func (c *call) endNow(ctx context.Context, id, process string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	_, _ = c.client.EndProcess(ctx, id, process) // or it has ended, or the server does it
}

// output is the output of a program and the pictures that it shows.
type output struct {
	process string // its ID, once it has started

	mu     sync.Mutex
	text   capture
	values []v1.Value
	lost   int64 // bytes that the server discarded
}

func (o *output) add(e client.Event) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch e.Kind {
	case "start":
		o.process = e.ProcessID
	case "stdout", "stderr":
		o.text.write(e.Output)
	case "display":
		if len(o.values) < maxImages {
			o.values = append(o.values, e.Value)
		}
	case "dropped":
		o.lost += e.Dropped
	}
	return nil
}

func (o *output) lastLine() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.lastLine()
}

// result is the result of a tool that ran code.
func (o *output) result(r v1.ExecuteResult) *sdk.CallToolResult {
	var b strings.Builder
	b.WriteString(o.text.String())
	if o.lost > 0 {
		note(&b, "%d bytes of output were lost", o.lost)
	}
	var images []sdk.Content
	for _, v := range o.values {
		image := imageOf(v)
		if image != nil {
			images = append(images, image)
			continue
		}
		if s := cmp.Or(v.Text, v.Markdown, v.HTML, v.Latex, v.SVG); s != "" {
			line(&b, shorten(s, maxText))
		}
	}
	if r.Error != nil && r.Status == "error" && r.Error.Name != "exit_code" && !strings.Contains(b.String(), r.Error.Message) {
		line(&b, r.Error.Name+": "+r.Error.Message)
	}
	switch {
	case r.Status != "ok" && r.Status != "error":
		note(&b, "status %s, exit code %d%s", r.Status, r.ExitCode, meaning(r.Status))
	case r.ExitCode != 0:
		note(&b, "exit code %d", r.ExitCode)
	}
	if b.Len() == 0 && len(images) == 0 {
		b.WriteString("(no output)")
	}
	content := images
	if b.Len() > 0 {
		content = append([]sdk.Content{&sdk.TextContent{Text: b.String()}}, images...)
	}
	return &sdk.CallToolResult{Content: content, IsError: r.Status != "ok"}
}

// meaning explains a status.
func meaning(status string) string {
	switch status {
	case "timeout":
		return ": it ran longer than timeout_seconds and was ended"
	case "oom":
		return ": the sandbox ran out of memory"
	case "disk_full":
		return ": the disk of the sandbox is full"
	case "pids":
		return ": the sandbox has as many processes as it may have"
	case "paused":
		return ": the sandbox was paused while it ran; it continues when the sandbox is used again"
	}
	return ""
}

// line adds a text on lines of its own.
func line(b *strings.Builder, s string) {
	if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
		b.WriteByte('\n')
	}
	b.WriteString(s)
}

// note adds a remark of ours, in brackets.
func note(b *strings.Builder, format string, args ...any) {
	line(b, "["+fmt.Sprintf(format, args...)+"]")
}

// imageOf returns the picture of a value; nil if it has none that is small enough.
func imageOf(v v1.Value) sdk.Content {
	s, kind := v.PNG, "image/png"
	if s == "" {
		s, kind = v.JPEG, "image/jpeg"
	}
	if s == "" || len(s) > maxImage*4/3 {
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(s))
	if err != nil {
		return nil
	}
	return &sdk.ImageContent{Data: data, MIMEType: kind}
}

// tellProgress sends progress notifications to the client, if it asked for them,
// until the returned function is called.
func (c *call) tellProgress(ctx context.Context, latest func() string) (stop func()) {
	token := c.request.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	start, done := time.Now(), make(chan struct{})
	var told sync.WaitGroup
	told.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-done:
				return
			case <-ctx.Done():
				return
			}
			took := time.Since(start).Truncate(time.Second)
			message := fmt.Sprintf("running for %v", took)
			if s := latest(); s != "" {
				message += ": " + s
			}
			_ = c.request.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ // a lost notification does no harm
				ProgressToken: token, Progress: took.Seconds(), Message: message,
			})
		}
	})
	return func() {
		close(done)
		told.Wait()
	}
}
