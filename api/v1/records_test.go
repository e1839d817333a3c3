package v1_test

import (
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// Times are in UTC, to the microsecond, also those of templates and builds.
func TestTimesOfTemplates(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 123456789, time.FixedZone("", 3600))
	want := time.Date(2026, 1, 2, 2, 4, 5, 123456000, time.UTC)
	build := v1.BuildOf(sandbox.TemplateBuild{CreatedAt: at, StartedAt: at, EndedAt: at})
	for name, got := range map[string]time.Time{
		"created_at of a template": v1.TemplateOf(sandbox.Template{CreatedAt: at}).CreatedAt,
		"created_at":               build.CreatedAt, "started_at": build.StartedAt, "ended_at": build.EndedAt,
	} {
		if got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if got := v1.BuildOf(sandbox.TemplateBuild{CreatedAt: at}); !got.EndedAt.IsZero() {
		t.Errorf("a build that has not ended ended at %v", got.EndedAt)
	}
}
