package v1

import (
	"encoding/json"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// CreateRequest asks for a sandbox. Absent fields take the server's default.
type CreateRequest struct {
	Template       string            `json:"template,omitempty"`
	Name           string            `json:"name,omitempty"`
	TimeoutSeconds *Seconds          `json:"timeout_seconds,omitempty"`
	Resources      *Resources        `json:"resources,omitempty"`
	Network        Network           `json:"network,omitempty"`
	Ports          *PortRules        `json:"ports,omitempty"`
	Secrets        *SecretUses       `json:"secrets,omitempty"`
	Metadata       map[string]string `json:"metadata,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	User           string            `json:"user,omitempty"`
	Cwd            string            `json:"cwd,omitempty"`
	IfExists       sandbox.IfExists  `json:"if_exists,omitempty"`

	IdleTimeoutSeconds     SecondsOrNone     `json:"idle_timeout_seconds,omitempty"`
	OnTimeout              sandbox.OnTimeout `json:"on_timeout,omitempty"`
	AutoResume             *bool             `json:"auto_resume,omitempty"`
	SnapshotID             string            `json:"snapshot_id,omitempty"` // or its name
	CheckpointEverySeconds SecondsOrNone     `json:"checkpoint_every_seconds,omitempty"`
	Volumes                *VolumeMounts     `json:"volumes,omitempty"`
}

// Resources are a size. Absent fields take the value of the instance type Type, or
// the default.
type Resources struct {
	Type          string   `json:"type,omitempty"`
	CPUs          *float64 `json:"cpus,omitempty"`
	MemoryMB      *int64   `json:"memory_mb,omitempty"`
	DiskMB        *int64   `json:"disk_mb,omitempty"`
	Pids          *int64   `json:"pids,omitempty"`
	BandwidthMbps *int64   `json:"bandwidth_mbps,omitempty"` // 0: not limited
}

// UpdateRequest changes a sandbox. Absent fields stay unchanged.
type UpdateRequest struct {
	Name           Optional[string]   `json:"name,omitzero"`
	TimeoutSeconds *Seconds           `json:"timeout_seconds,omitempty"`
	Metadata       map[string]*string `json:"metadata,omitempty"` // null removes a key
	Env            map[string]*string `json:"env,omitempty"`      // null removes a variable
	Network        *Network           `json:"network,omitempty"`
	Ports          *PortRules         `json:"ports,omitempty"`
	Secrets        *SecretUses        `json:"secrets,omitempty"`
	Resources      *Resources         `json:"resources,omitempty"`
	User           Optional[string]   `json:"user,omitzero"`
	Cwd            Optional[string]   `json:"cwd,omitzero"`
	Template       *string            `json:"template,omitempty"`

	IdleTimeoutSeconds     Optional[SecondsOrNone] `json:"idle_timeout_seconds,omitzero"`
	OnTimeout              *sandbox.OnTimeout      `json:"on_timeout,omitempty"`
	AutoResume             *bool                   `json:"auto_resume,omitempty"`
	CheckpointEverySeconds Optional[SecondsOrNone] `json:"checkpoint_every_seconds,omitzero"`
	Volumes                *VolumeMounts           `json:"volumes,omitempty"`
}

// TimeoutRequest sets a sandbox's deadline to so long from now.
type TimeoutRequest struct {
	TimeoutSeconds *Seconds `json:"timeout_seconds"`
}

// SaveRequest pauses or resumes a sandbox.
type SaveRequest struct {
	Memory *bool `json:"memory,omitempty"` // false: files alone; nil: all of it
}

// RollbackRequest asks to reset a sandbox to a snapshot.
type RollbackRequest struct {
	SnapshotID string `json:"snapshot_id"` // or its name
}

// ForkRequest asks for copies of a sandbox. Absent fields are as in the original.
type ForkRequest struct {
	Count          *int               `json:"count,omitempty"` // nil: 1
	Name           string             `json:"name,omitempty"`
	TimeoutSeconds *Seconds           `json:"timeout_seconds,omitempty"`
	OnTimeout      sandbox.OnTimeout  `json:"on_timeout,omitempty"`
	AutoResume     *bool              `json:"auto_resume,omitempty"`
	Network        Network            `json:"network,omitempty"`
	Secrets        *SecretUses        `json:"secrets,omitempty"`
	KeepSecrets    bool               `json:"keep_secrets,omitempty"`
	Metadata       map[string]*string `json:"metadata,omitempty"` // null removes a key
	Env            map[string]*string `json:"env,omitempty"`      // null removes a variable

	IdleTimeoutSeconds Optional[SecondsOrNone] `json:"idle_timeout_seconds,omitzero"`
}

// SnapshotRequest asks for a snapshot of a sandbox.
type SnapshotRequest struct {
	Name   string `json:"name,omitempty"`
	Memory *bool  `json:"memory,omitempty"` // false: files alone; nil: all of it
}

// PortRequest changes access to one port. Nil fields stay unchanged.
type PortRequest struct {
	Private *bool `json:"private,omitempty"`
	TLS     *bool `json:"tls,omitempty"`
}

// PortLinkRequest asks for a link to a port.
type PortLinkRequest struct {
	ExpiresInSeconds *Seconds `json:"expires_in_seconds,omitempty"` // nil: an hour
}

// ExecuteRequest asks for one execution of code. Without a Target the server borrows a
// sandbox for it.
type ExecuteRequest struct {
	Target
	Code           string            `json:"code"`
	Language       string            `json:"language,omitempty"`
	TimeoutSeconds *SecondsOrNone    `json:"timeout_seconds,omitempty"` // 0: no limit
	Env            map[string]string `json:"env,omitempty"`
	Cwd            string            `json:"cwd,omitempty"`
	User           string            `json:"user,omitempty"`
	Stdin
	Stream         bool    `json:"stream,omitempty"`
	MaxOutputBytes *int    `json:"max_output_bytes,omitempty"`
	ContextID      *string `json:"context_id,omitempty"` // nil: the default context
}

// ContextRequest asks for a context.
type ContextRequest struct {
	Target
	Language string `json:"language,omitempty"`
	Cwd      string `json:"cwd,omitempty"`
	User     string `json:"user,omitempty"`
}

// StartProcessRequest starts a process: either Command in a shell, or Argv.
type StartProcessRequest struct {
	Target
	Command        string            `json:"command,omitempty"`
	Argv           []string          `json:"argv,omitempty"`
	Name           string            `json:"name,omitempty"`
	User           string            `json:"user,omitempty"`
	Cwd            string            `json:"cwd,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	Background     bool              `json:"background,omitempty"`
	YieldMS        *int64            `json:"yield_ms,omitempty"`
	MaxOutputBytes *int              `json:"max_output_bytes,omitempty"`
	TimeoutSeconds *Seconds          `json:"timeout_seconds,omitempty"`
	Stdin
	KeepStdin bool          `json:"keep_stdin,omitempty"` // it takes input while it runs
	PTY       *TerminalSize `json:"pty,omitempty"`        // nil: it has no terminal
	Shell     string        `json:"shell,omitempty"`
}

// SignalRequest sends a signal to a process and its group.
type SignalRequest struct {
	Signal SignalName `json:"signal"`
}

// MakeDirRequest makes a directory.
type MakeDirRequest struct {
	Target
	Path string `json:"path"`
}

// MoveRequest moves a file or directory.
type MoveRequest struct {
	Target
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

// CopyRequest copies a file or directory.
type CopyRequest struct {
	Target
	FileCopy
}

// FileCopy is a request to copy a file or directory.
type FileCopy struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Recursive   bool   `json:"recursive,omitempty"`
	Overwrite   bool   `json:"overwrite,omitempty"`
	User        string `json:"user,omitempty"`
}

// ChmodRequest changes permissions.
type ChmodRequest struct {
	Target
	FileChmod
}

// FileChmod is a request to change permissions.
type FileChmod struct {
	Path      string `json:"path"`
	Mode      string `json:"mode"` // octal
	Recursive bool   `json:"recursive,omitempty"`
	User      string `json:"user,omitempty"`
}

// FileSelection selects the files to examine.
type FileSelection struct {
	Path     string   `json:"path"`
	Globs    []string `json:"globs,omitempty"`
	Hidden   bool     `json:"hidden,omitempty"`
	NoIgnore bool     `json:"no_ignore,omitempty"`
}

// SearchRequest searches files for lines.
type SearchRequest struct {
	Target
	FileSelection
	Pattern      string `json:"pattern"`
	Literal      bool   `json:"literal,omitempty"`
	IgnoreCase   bool   `json:"ignore_case,omitempty"`
	Word         bool   `json:"word,omitempty"`
	FilesOnly    bool   `json:"files_only,omitempty"`
	MaxResults   *int   `json:"max_results,omitempty"`
	ContextLines int    `json:"context_lines,omitempty"`
	User         string `json:"user,omitempty"`
}

// ReplaceRequest replaces text in files.
type ReplaceRequest struct {
	Target
	FileSelection
	Pattern       string  `json:"pattern"`
	Replacement   *string `json:"replacement"`
	Regex         bool    `json:"regex,omitempty"`
	IgnoreCase    bool    `json:"ignore_case,omitempty"`
	ExpectedCount *int64  `json:"expected_count,omitempty"`
	DryRun        bool    `json:"dry_run,omitempty"`
	User          string  `json:"user,omitempty"`
}

// BatchRequest is several operations on files, one after the other.
type BatchRequest struct {
	Target
	Operations  []json.RawMessage `json:"operations"` // objects with an op each
	StopOnError bool              `json:"stop_on_error,omitempty"`
}

// SignRequest asks for a URL that opens one file.
type SignRequest struct {
	Target
	Path             string   `json:"path"`
	Method           string   `json:"method"`
	ExpiresInSeconds *Seconds `json:"expires_in_seconds,omitempty"`
}

// GitRequest names a repository in a sandbox.
type GitRequest struct {
	Target
	Path string `json:"path,omitempty"`
	User string `json:"user,omitempty"`
}

// GitRemote holds the fields of git calls that use the network.
type GitRemote struct {
	Credentials    *GitCredentials `json:"credentials,omitempty"`
	TimeoutSeconds *Seconds        `json:"timeout_seconds,omitempty"`
}

// GitCredentials are good for one host and one call.
type GitCredentials struct {
	Username string `json:"username,omitempty"`
	Password string `json:"password"`
	Host     string `json:"host,omitempty"`
}

// GitCloneRequest clones a repository.
type GitCloneRequest struct {
	GitRequest
	GitRemote
	URL    string `json:"url"`
	Branch string `json:"branch,omitempty"`
	Depth  *int   `json:"depth,omitempty"`
}

// GitCheckoutRequest checks a commit out.
type GitCheckoutRequest struct {
	GitRequest
	Ref    string `json:"ref"`
	Create bool   `json:"create,omitempty"`
	Start  string `json:"start,omitempty"`
}

// GitAddRequest adds files to the index.
type GitAddRequest struct {
	GitRequest
	Files []string `json:"files,omitempty"`
	All   bool     `json:"all,omitempty"`
}

// GitCommitRequest makes a commit.
type GitCommitRequest struct {
	GitRequest
	Message    string     `json:"message"`
	Author     *GitAuthor `json:"author,omitempty"`
	All        bool       `json:"all,omitempty"`
	AllowEmpty bool       `json:"allow_empty,omitempty"`
}

// GitAuthor is the author of a commit.
type GitAuthor struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// GitPullRequest pulls from a remote.
type GitPullRequest struct {
	GitRequest
	GitRemote
	Remote string `json:"remote,omitempty"`
	Branch string `json:"branch,omitempty"`
	Rebase bool   `json:"rebase,omitempty"`
}

// GitPushRequest pushes to a remote.
type GitPushRequest struct {
	GitRequest
	GitRemote
	Remote      string `json:"remote,omitempty"`
	Branch      string `json:"branch,omitempty"`
	Force       bool   `json:"force,omitempty"`
	SetUpstream bool   `json:"set_upstream,omitempty"`
}

// KeyRequest asks for an API key.
type KeyRequest struct {
	Name             string          `json:"name"`
	Scopes           []sandbox.Scope `json:"scopes,omitempty"` // nil: all of the role
	Role             string          `json:"role,omitempty"`
	ExpiresInSeconds *Seconds        `json:"expires_in_seconds,omitempty"` // nil: it does not expire
}

// KeyRotation asks for a new secret of a key.
type KeyRotation struct {
	OverlapSeconds *SecondsOrNone `json:"overlap_seconds,omitempty"` // in which both are valid
}

// SecretRequest makes a secret.
type SecretRequest struct {
	Name string `json:"name"`
	SecretReplacement
}

// SecretReplacement replaces the value of a secret.
type SecretReplacement struct {
	Value       string       `json:"value"`
	Description *string      `json:"description,omitempty"` // nil: as it is
	Hosts       *SecretHosts `json:"hosts,omitempty"`       // nil: as they are
}

// VolumeRequest asks for a volume.
type VolumeRequest struct {
	Name   string `json:"name"`
	SizeMB *int64 `json:"size_mb,omitempty"`
}

// TenantRequest makes a tenant.
type TenantRequest struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name,omitempty"`
}

// TenantChange changes a tenant. Nil fields stay unchanged.
type TenantChange struct {
	Name   *string              `json:"name,omitempty"`
	State  *sandbox.TenantState `json:"state,omitempty"`
	Reason string               `json:"reason,omitempty"` // of a suspension
}

// UserRequest makes a user.
type UserRequest struct {
	ID    string `json:"user_id"`
	Name  string `json:"name,omitempty"`
	Email string `json:"email,omitempty"`
	Role  string `json:"role,omitempty"`
}

// UserChange changes a user. Nil fields stay unchanged.
type UserChange struct {
	Name  *string            `json:"name,omitempty"`
	Email *string            `json:"email,omitempty"`
	Role  *string            `json:"role,omitempty"`
	State *sandbox.UserState `json:"state,omitempty"`
}

// TemplateRequest asks for a build of a template.
type TemplateRequest struct {
	Template string            `json:"template"`
	Source   string            `json:"source,omitempty"`
	Packages []string          `json:"packages,omitempty"`
	Files    []TemplateFile    `json:"files,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Start    string            `json:"start,omitempty"`
	Ready    string            `json:"ready,omitempty"`
	Bare     bool              `json:"bare,omitempty"`
	Force    bool              `json:"force,omitempty"`
	// Dockerfile is the text of one, in place of Source, and BuildArgs its arguments.
	Dockerfile string            `json:"dockerfile,omitempty"`
	BuildArgs  map[string]string `json:"build_args,omitempty"`
}

// TemplateFile is a file that a template gets.
type TemplateFile struct {
	Path    string  `json:"path"`
	Content *string `json:"content,omitempty"`
	Base64  []byte  `json:"content_base64,omitempty"`
	Mode    string  `json:"mode,omitempty"`
	Owner   string  `json:"owner,omitempty"`
}
