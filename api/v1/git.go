package v1

// GitHead is the current branch and commit of a repository.
type GitHead struct {
	Path   string `json:"path"`
	Branch string `json:"branch,omitempty"` // empty: HEAD is detached
	Commit string `json:"commit,omitempty"` // empty: no commit yet
}

// GitStatus is the state of a repository's work tree.
type GitStatus struct {
	GitHead
	Upstream  string    `json:"upstream,omitempty"`
	Ahead     int64     `json:"ahead"`
	Behind    int64     `json:"behind"`
	Clean     bool      `json:"clean"`
	Files     []GitFile `json:"files"`
	Truncated bool      `json:"truncated"` // there are more
}

// GitFile is a file that differs from the last commit.
type GitFile struct {
	Path         string `json:"path"`
	Index        string `json:"index"`
	Worktree     string `json:"worktree"`
	OriginalPath string `json:"original_path,omitempty"` // of a renamed file
}

// GitBranches are the branches of a repository.
type GitBranches struct {
	Path      string      `json:"path"`
	Current   string      `json:"current,omitempty"`
	Branches  []GitBranch `json:"branches"`
	Truncated bool        `json:"truncated"` // there are more
}

// GitBranch is one branch.
type GitBranch struct {
	Name     string `json:"name"`
	Commit   string `json:"commit"`
	Remote   bool   `json:"remote"`
	Upstream string `json:"upstream,omitempty"`
}

// GitPulled is the result of a pull.
type GitPulled struct {
	GitHead
	Updated bool `json:"updated"` // there was something to pull
}

// GitPushed is the result of a push.
type GitPushed struct {
	Path   string `json:"path"`
	Branch string `json:"branch"`
	Remote string `json:"remote"`
	Commit string `json:"commit"`
}
