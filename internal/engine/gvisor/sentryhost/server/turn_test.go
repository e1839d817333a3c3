package server

import (
	"encoding/json"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

// A call that undoes an abandoned call waits for it, and for no other.
func TestTurns(t *testing.T) {
	boot, other, state := sandbox.NewBootID(), sandbox.NewBootID(), sandbox.NewSnapshotID()
	ask := func(method string, body any) string {
		raw, err := json.Marshal(body)
		must(t, err)
		return turn(&fdrpc.Request{Method: method, Body: raw})
	}
	start := ask(sentryhost.MethodStart, sentryhost.StartRequest{ID: boot, From: state})
	stop := ask(sentryhost.MethodStop, sentryhost.BootRequest{ID: boot})
	freeze := ask(sentryhost.MethodFreeze, sentryhost.BootRequest{ID: boot})
	save := ask(sentryhost.MethodSave, sentryhost.SaveRequest{ID: boot, Name: state, Memory: true})
	limit := ask(sentryhost.MethodLimit, sentryhost.LimitRequest{ID: boot, Limits: withMemory(256).Limits()})
	for _, tt := range []struct {
		name    string
		one     string
		another string
		same    bool
	}{
		{"stop and start", start, stop, true},
		{"thaw and freeze", freeze, ask(sentryhost.MethodThaw, sentryhost.BootRequest{ID: boot}), true},
		{"delete and save", save, ask(sentryhost.MethodDelete, sentryhost.SavedRequest{Name: state}), true},
		{"delete and import", ask(sentryhost.MethodImport, sentryhost.ImportRequest{Name: state}), ask(sentryhost.MethodDelete, sentryhost.SavedRequest{Name: state}), true},
		{"revoke and share", ask(sentryhost.MethodShareWithEarlier, sentryhost.EarlierRequest{Name: state, Build: earlierBuild}), ask(sentryhost.MethodRevokeFromEarlier, sentryhost.EarlierRequest{Name: state, Build: earlierBuild}), true},
		{"two limits", limit, ask(sentryhost.MethodLimit, sentryhost.LimitRequest{ID: boot}), true},
		{"a stop does not wait for a save", stop, save, false},
		{"nor for what waits for a save", stop, freeze, false},
		{"nor for limits", stop, limit, false},
		{"nor a share for a delete", ask(sentryhost.MethodShareWithEarlier, sentryhost.EarlierRequest{Name: state, Build: earlierBuild}), ask(sentryhost.MethodDelete, sentryhost.SavedRequest{Name: state}), false},
		{"another boot", start, ask(sentryhost.MethodStop, sentryhost.BootRequest{ID: other}), false},
		{"another state", save, ask(sentryhost.MethodDelete, sentryhost.SavedRequest{Name: sandbox.NewSnapshotID()}), false},
	} {
		if tt.one == "" || tt.another == "" || (tt.one == tt.another) != tt.same {
			t.Errorf("%s: the turns are %q and %q", tt.name, tt.one, tt.another)
		}
	}
	for _, method := range []string{sentryhost.MethodUsage, sentryhost.MethodList, sentryhost.MethodWatch, sentryhost.MethodHello, sentryhost.MethodDown} {
		if got := ask(method, sentryhost.BootRequest{ID: boot}); got != "" {
			t.Errorf("%s waits for its turn at %q", method, got)
		}
	}
}
