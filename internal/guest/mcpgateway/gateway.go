package mcpgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// gateway runs servers, and maps tools and prompts to them.
type gateway struct {
	servers []server

	mu       sync.Mutex
	sessions []*session // of servers, by index
	tools    []item     // of all, by name
	prompts  []item
	known    bool // the lists are current
}

// item is a tool or prompt: its description for clients, and its server.
type item struct {
	name  string // name for clients
	inner string // name in its server
	place int    // index of the server
	told  json.RawMessage
}

// open starts all servers. On error none runs.
func open(ctx context.Context, servers []server) (*gateway, error) {
	g := &gateway{servers: servers, sessions: make([]*session, len(servers))}
	errs := make([]error, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() {
			if g.sessions[i], errs[i] = start(ctx, s); errs[i] != nil {
				errs[i] = fmt.Errorf("server %q: %w", s.name, errs[i])
			}
		})
	}
	all.Wait()
	err := errors.Join(errs...)
	if err == nil {
		err = g.look(ctx)
	}
	if err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// close ends all servers.
func (g *gateway) close() {
	for _, s := range g.sessions {
		if s != nil {
			_ = s.stdin.Close() // which ends it; a server that ignores this ends with the Sandbox
		}
	}
}

// look updates the lists; a server that has ended is restarted.
func (g *gateway) look(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, s := range g.sessions {
		if s.ended() {
			again, err := start(ctx, g.servers[i])
			if err != nil {
				return fmt.Errorf("server %q has ended, and %w", g.servers[i].name, err)
			}
			g.sessions[i], g.known = again, false
		} else if s.changed() {
			g.known = false
		}
	}
	if g.known {
		return nil
	}
	tools, err := g.gather(ctx, "tools")
	if err != nil {
		return err
	}
	prompts, err := g.gather(ctx, "prompts")
	if err != nil {
		return err
	}
	g.tools, g.prompts, g.known = tools, prompts, true
	return nil
}

// gather lists the tools or prompts of all servers. If several have the same name,
// the first one keeps it, and the others get their server's name as a prefix. g.mu
// is held.
func (g *gateway) gather(ctx context.Context, kind string) (all []item, err error) {
	taken := map[string]bool{}
	for place, s := range g.sessions {
		if !s.offers[kind] {
			continue
		}
		listed, err := s.list(ctx, kind+"/list", kind)
		if err != nil {
			return nil, fmt.Errorf("server %q: %w", s.name, err)
		}
		for _, raw := range listed {
			fields := map[string]json.RawMessage{}
			var inner string
			if json.Unmarshal(raw, &fields) != nil || json.Unmarshal(fields["name"], &inner) != nil || inner == "" {
				return nil, fmt.Errorf("server %q lists an entry without a name", s.name)
			}
			name := inner
			for n := 1; taken[name]; n++ {
				if name = prefixOf(s.name) + "__" + inner; n > 1 {
					name = fmt.Sprintf("%s_%d", name, n)
				}
			}
			taken[name] = true
			if fields["name"], err = json.Marshal(name); err != nil {
				return nil, err
			}
			told, err := json.Marshal(fields)
			if err != nil {
				return nil, err
			}
			all = append(all, item{name: name, inner: inner, place: place, told: told})
		}
	}
	return all, nil
}

// prefixOf returns the name of a server with characters that a tool name may have.
func prefixOf(server string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, server)
}

// offers reports whether any server has items of a kind.
func (g *gateway) offers(kind string) bool {
	return slices.ContainsFunc(g.running(), func(s *session) bool { return s.offers[kind] })
}

func (g *gateway) running() []*session {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.sessions)
}

// handle answers a request of a client.
func (g *gateway) handle(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	switch method {
	case "initialize":
		return g.initialize(params)
	case "ping":
		return json.RawMessage(`{}`), nil
	}
	if err := g.look(ctx); err != nil {
		return nil, err
	}
	switch method {
	case "tools/list":
		return listOf("tools", g.items(&g.tools))
	case "prompts/list":
		return listOf("prompts", g.items(&g.prompts))
	case "tools/call":
		return g.pass(ctx, method, params, g.items(&g.tools))
	case "prompts/get":
		return g.pass(ctx, method, params, g.items(&g.prompts))
	case "resources/list":
		return g.resources(ctx, method, "resources")
	case "resources/templates/list":
		return g.resources(ctx, method, "resourceTemplates")
	case "resources/read":
		return g.read(ctx, params)
	}
	return nil, &rpcError{Code: noMethod, Message: fmt.Sprintf("the gateway has no method %.80q", method)}
}

func (g *gateway) items(of *[]item) []item {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *of // they are replaced, never changed
}

func (g *gateway) initialize(params json.RawMessage) (json.RawMessage, error) {
	var asked struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if err := json.Unmarshal(params, &asked); err != nil {
		return nil, &rpcError{Code: invalidParams, Message: "initialize needs a protocolVersion"}
	}
	version := asked.ProtocolVersion
	if !slices.Contains(protocols, version) {
		version = protocols[0]
	}
	capabilities := map[string]struct{}{}
	for _, kind := range []string{"tools", "prompts", "resources"} {
		if g.offers(kind) {
			capabilities[kind] = struct{}{}
		}
	}
	return json.Marshal(map[string]any{
		"protocolVersion": version, "capabilities": capabilities, "serverInfo": map[string]string{"name": "mcp-gateway", "version": "1"},
	})
}

func listOf(field string, items []item) (json.RawMessage, error) {
	told := make([]json.RawMessage, 0, len(items))
	for _, i := range items {
		told = append(told, i.told)
	}
	return json.Marshal(map[string]any{field: told})
}

// pass forwards a request to the server of the item that params name.
func (g *gateway) pass(ctx context.Context, method string, params json.RawMessage, items []item) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	var name string
	if json.Unmarshal(params, &fields) != nil || json.Unmarshal(fields["name"], &name) != nil {
		return nil, &rpcError{Code: invalidParams, Message: method + " needs a name"}
	}
	i := slices.IndexFunc(items, func(i item) bool { return i.name == name })
	if i < 0 {
		return nil, &rpcError{Code: invalidParams, Message: fmt.Sprintf("no server has %.80q", name)}
	}
	var err error
	if fields["name"], err = json.Marshal(items[i].inner); err != nil {
		return nil, err
	}
	if params, err = json.Marshal(fields); err != nil {
		return nil, err
	}
	s := g.running()[items[i].place]
	result, err := s.call(ctx, method, params)
	return result, named(s, err)
}

// named adds the server's name to an error, unless it is an error answer of the
// server.
func named(s *session, err error) error {
	var told *rpcError
	if err == nil || errors.As(err, &told) {
		return err
	}
	return fmt.Errorf("server %q: %w", s.name, err)
}

// resources lists the resources of all servers, or their templates.
func (g *gateway) resources(ctx context.Context, method, field string) (json.RawMessage, error) {
	all := []json.RawMessage{}
	for _, s := range g.running() {
		if !s.offers["resources"] {
			continue
		}
		some, err := s.list(ctx, method, field)
		var told *rpcError
		if errors.As(err, &told) && told.Code == noMethod { // not every server has templates
			continue
		}
		if err != nil {
			return nil, named(s, err)
		}
		all = append(all, some...)
	}
	return json.Marshal(map[string]any{field: all})
}

// read asks one server after the other for a resource: only they know their
// resources.
func (g *gateway) read(ctx context.Context, params json.RawMessage) (json.RawMessage, error) {
	var failed error = &rpcError{Code: invalidParams, Message: "no server has resources"}
	for _, s := range g.running() {
		if !s.offers["resources"] {
			continue
		}
		result, err := s.call(ctx, "resources/read", params)
		if err == nil {
			return result, nil
		}
		if failed = named(s, err); ctx.Err() != nil {
			break
		}
	}
	return nil, failed
}
