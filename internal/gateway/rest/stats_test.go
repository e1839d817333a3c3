package rest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// reports has Nodes of which only "last" answers.
type reports struct{ sandbox.NodeReports }

func (reports) Stats(ctx context.Context, node string) (sandbox.NodeStats, error) {
	if node == "last" {
		return sandbox.NodeStats{Ready: true}, nil
	}
	<-ctx.Done()
	return sandbox.NodeStats{}, ctx.Err()
}

// Nodes that do not answer leave the time of the others alone.
func TestNodeStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &rest.API{Reports: reports{}, NodeNames: func(context.Context) ([]string, error) {
			return []string{"silent", "silent too", "last"}, nil
		}}
		began := time.Now()
		states, err := api.NodeStates(t.Context())
		if err != nil || len(states) != 3 || states[0].Err == nil || states[1].Ready || !states[2].Ready || states[2].Node != "last" {
			t.Errorf("%+v, %v", states, err)
		}
		if took := time.Since(began); took > rest.NodeTime {
			t.Errorf("it took %v", took)
		}
	})
}
