package node_test

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node/nodetest"
)

// The Node passes the suite of its ports.
func TestSuite(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) nodetest.World {
		w := newWorld(t, node.PoolConfig{})
		t.Cleanup(w.close)
		w.run()
		return nodetest.World{
			Name: name, Image: fake.Image, NodeBoots: w.node, NodeSaves: w.node, NodeChanges: w.node, NodeVolumes: w.node, Dialer: w.node, Reports: w.node, Files: w.node,
			Remember: func(bootID, value string) { w.engine.Guest(bootID).Remember("value", value) },
			Recall:   func(bootID string) string { return w.engine.Guest(bootID).Recall("value") },
			Need:     w.engine.Need,
		}
	})
}
