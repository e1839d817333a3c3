package fake_test

import (
	"context"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/enginetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
)

func TestEngine(t *testing.T) {
	enginetest.Run(t, enginetest.Options{
		Open: func(t *testing.T) sandbox.Engine {
			e := fake.New()
			t.Cleanup(e.Close)
			return e
		},
		Reopen: func(_ *testing.T, e sandbox.Engine) sandbox.Engine { return e.(*fake.Engine).Reopen() },
		Kill: func(_ *testing.T, e sandbox.Engine, id string) {
			e.(*fake.Engine).Kill(id, sandbox.CauseEngineLost)
		},
		Image: fake.Image,
		Pause: &enginetest.Pause{
			Ask: func(ctx context.Context, e sandbox.Engine, id string) error {
				c := e.(*fake.Engine).Control(id)
				defer c.Close()
				_, _, err := c.Health(ctx)
				return err
			},
			Remember: func(_ *testing.T, e sandbox.Engine, id, value string) {
				e.(*fake.Engine).Guest(id).Remember("value", value)
			},
			Recall: func(_ *testing.T, e sandbox.Engine, id string) string {
				return e.(*fake.Engine).Guest(id).Recall("value")
			},
			WriteFile: func(_ *testing.T, e sandbox.Engine, id, value string) {
				e.(*fake.Engine).Guest(id).WriteFile("value", value)
			},
			ReadFile: func(_ *testing.T, e sandbox.Engine, id string) string {
				return e.(*fake.Engine).Guest(id).ReadFile("value")
			},
			Need:   func(_ *testing.T, e sandbox.Engine, name, feature string) { e.(*fake.Engine).Need(name, feature) },
			Damage: func(_ *testing.T, e sandbox.Engine, name string) { e.(*fake.Engine).Damage(name) },
		},
	})
}

func TestControl(t *testing.T) {
	e := fake.New()
	defer e.Close()
	id := sandbox.NewBootID()
	if err := e.Start(t.Context(), id, sandbox.BootSpec{Image: fake.Image, Shape: sandbox.DefaultShape()}); err != nil {
		t.Fatal(err)
	}
	c := e.Control(id)
	defer c.Close()
	if owner, n, err := c.Health(t.Context()); err != nil || owner != "" || n != 0 {
		t.Errorf("a blank guest says %q, %d, %v", owner, n, err)
	}
	b := sandbox.Binding{SandboxID: sandbox.NewSandboxID(), BootNumber: 3}
	if _, err := c.Bind(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if owner, n, err := c.Health(t.Context()); err != nil || owner != b.SandboxID || n != 3 {
		t.Errorf("a bound guest says %q, %d, %v", owner, n, err)
	}
	if _, err := c.Bind(t.Context(), sandbox.Binding{SandboxID: sandbox.NewSandboxID(), BootNumber: 1}); sandbox.CodeOf(err) != sandbox.Conflict {
		t.Errorf("a second owner = %v, want conflict", err)
	}
}
