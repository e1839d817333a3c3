package v1

import (
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Template is one name of one version of a root filesystem that sandboxes start from.
type Template struct {
	Template    string            `json:"template"` // NAME, NAME:TAG or NAME@VERSION
	Name        string            `json:"name"`
	Tag         string            `json:"tag,omitempty"`
	Version     string            `json:"version"`
	Shared      bool              `json:"shared"` // by all tenants
	Source      string            `json:"source"`
	Packages    []string          `json:"packages"`
	Env         map[string]string `json:"env"`
	Start       string            `json:"start,omitempty"`
	Ready       string            `json:"ready,omitempty"`
	SizeBytes   int64             `json:"size_bytes"`
	StoredBytes int64             `json:"stored_bytes"` // on the disk
	CreatedAt   time.Time         `json:"created_at"`
}

// TemplateOf returns the JSON of a record.
func TemplateOf(t sandbox.Template) Template {
	v := Template{
		Template: TemplateName(t), Name: t.Name, Tag: t.Tag, Version: t.Version, Shared: t.Shared, Source: t.Source,
		Packages: t.Packages, Env: t.Env, Start: t.Start, Ready: t.Ready, SizeBytes: t.SizeBytes, StoredBytes: t.StoredBytes, CreatedAt: Time(t.CreatedAt),
	}
	if v.Packages == nil {
		v.Packages = []string{}
	}
	if v.Env == nil {
		v.Env = map[string]string{}
	}
	return v
}

// TemplateName is the name by which sandboxes start from t: NAME, NAME:TAG or
// NAME@VERSION.
func TemplateName(t sandbox.Template) string {
	switch t.Tag {
	case "":
		return t.Name + "@" + t.Version
	case "latest":
		return t.Name
	}
	return t.Name + ":" + t.Tag
}

// Templates are all templates that the caller can use, by name.
type Templates struct {
	Templates []Template `json:"templates"`
}

// TemplateVersions are the template that a name means, and all its versions, newest
// first.
type TemplateVersions struct {
	Template
	Versions []Template `json:"versions"`
}

// RemovedTemplates is the result of a removal.
type RemovedTemplates struct {
	Removed    []string `json:"removed"`
	FreedBytes int64    `json:"freed_bytes"`
}

// Build is the record of a build of a template.
type Build struct {
	ID        string             `json:"build_id"`
	Template  string             `json:"template"`
	Source    string             `json:"source"`
	State     sandbox.BuildState `json:"state"`
	Progress  string             `json:"progress"`
	CreatedAt time.Time          `json:"created_at"`
	StartedAt time.Time          `json:"started_at,omitzero"`
	EndedAt   time.Time          `json:"ended_at,omitzero"`
	Version   string             `json:"version,omitempty"` // that it made
	SizeBytes int64              `json:"size_bytes,omitempty"`
	Cached    bool               `json:"cached"`
	Error     *BuildFailure      `json:"error,omitempty"` // nil: it did not fail
}

// BuildOf returns the JSON of a record.
func BuildOf(b sandbox.TemplateBuild) Build {
	v := Build{
		ID: b.ID, Template: b.Template, Source: b.Source, State: b.State, Progress: b.Progress, CreatedAt: Time(b.CreatedAt),
		StartedAt: Time(b.StartedAt), EndedAt: Time(b.EndedAt), Version: b.Version, SizeBytes: b.SizeBytes, Cached: b.Cached,
	}
	if b.Failure != nil {
		v.Error = &BuildFailure{Code: b.Failure.Code, Message: b.Failure.Message}
	}
	return v
}

// BuildFailure is the error of a failed build.
type BuildFailure struct {
	Code    sandbox.Code `json:"code"`
	Message string       `json:"message"`
}

// Builds are the builds of a tenant that are known, newest first.
type Builds struct {
	Builds []Build `json:"builds"`
}

// Err returns the error of a build that failed; nil when it made a template.
func (b Build) Err() error {
	switch {
	case b.Error != nil:
		return sandbox.Errorf(b.Error.Code, "%s", b.Error.Message)
	case b.State != sandbox.BuildReady:
		return sandbox.Errorf(sandbox.Conflict, "the build is %s", b.State)
	}
	return nil
}

// BuildLine is a line of a build's log.
type BuildLine struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
	Next int64     `json:"next_offset"` // at which the next line begins
}
