package v1

import "time"

// File is an entry at a path in a sandbox.
type File struct {
	Name          string    `json:"name"`
	Path          string    `json:"path"`
	Type          string    `json:"type"` // "file", "directory", "symlink" or "other"
	SizeBytes     int64     `json:"size_bytes"`
	Mode          string    `json:"mode"` // octal, as "0644"
	Owner         string    `json:"owner"`
	Group         string    `json:"group"`
	ModifiedAt    time.Time `json:"modified_at"`
	SymlinkTarget string    `json:"symlink_target,omitempty"`
}

// Files are the entries of a directory.
type Files struct {
	Path      string `json:"path"`
	Entries   []File `json:"entries"`
	Truncated bool   `json:"truncated"` // there are more
}

// WrittenFiles are the files that one request wrote.
type WrittenFiles struct {
	Entries []File `json:"entries"`
}

// Copied is the result of a copy.
type Copied struct {
	Entry        File  `json:"entry"`
	Files        int64 `json:"files"`
	Bytes        int64 `json:"bytes"`
	FilesSkipped int64 `json:"files_skipped"`
}

// ChangedFiles is the number of files whose permissions or owner changed.
type ChangedFiles struct {
	Path    string `json:"path"`
	Changed int64  `json:"changed"`
}

// Extracted is the result of unpacking an archive.
type Extracted struct {
	Path        string `json:"path"`
	Files       int64  `json:"files"`
	Directories int64  `json:"directories"`
	Links       int64  `json:"links"`
	Skipped     int64  `json:"skipped"`
	Bytes       int64  `json:"bytes"`
}

// Match is a line, or a file, that a search found.
type Match struct {
	Path   string   `json:"path"`
	Line   int64    `json:"line,omitempty"`   // from 1; 0: the file itself
	Text   *string  `json:"text,omitempty"`   // of the line; nil: the file itself
	Cut    bool     `json:"cut,omitempty"`    // Text is not the whole line
	Spans  []Span   `json:"spans,omitempty"`  // the matching parts of Text
	Before []string `json:"before,omitempty"` // lines before it
	After  []string `json:"after,omitempty"`  // lines after it
}

// Span is a part of a line, in bytes: from Start to before End.
type Span struct {
	Start int `json:"start"`
	End   int `json:"end"`
}

// Matches are the results of a search.
type Matches struct {
	Matches       []Match `json:"matches"`
	FilesSearched int64   `json:"files_searched"`
	Truncated     bool    `json:"truncated"` // there are more
}

// Replaced are the replacements in one file.
type Replaced struct {
	Path  string  `json:"path"`
	Count int64   `json:"count"`
	Lines []int64 `json:"lines"`
}

// ReplacedFiles are the replacements that were made, or with DryRun would be.
type ReplacedFiles struct {
	Count         int64      `json:"count"`
	Files         []Replaced `json:"files"`
	FilesTooLarge int64      `json:"files_too_large"`
	DryRun        bool       `json:"dry_run"`
}

// BatchResult is the result of one operation of a batch.
type BatchResult struct {
	Status        string   `json:"status"` // "ok" or "error"
	Entry         *File    `json:"entry,omitempty"`
	Entries       *[]File  `json:"entries,omitempty"`
	Content       *string  `json:"content,omitempty"`
	ContentBase64 *string  `json:"content_base64,omitempty"` // of content that is not UTF-8
	Truncated     *bool    `json:"truncated,omitempty"`
	Changed       *int64   `json:"changed,omitempty"`
	Error         *Failure `json:"error,omitempty"`
}

// BatchResults are the results of a batch, in the order of its operations.
type BatchResults struct {
	Results []BatchResult `json:"results"`
	Failed  int           `json:"failed"`
}

// FileChange is a change below a watched path.
type FileChange struct {
	Type   string `json:"type"`
	Path   string `json:"path"`
	Cursor string `json:"cursor"` // to request the next changes
}

// FileChanges are the changes since a cursor.
type FileChanges struct {
	Cursor  string       `json:"cursor"`
	Reset   bool         `json:"reset"` // changes are missing: read everything again
	Changes []FileChange `json:"changes"`
}

// WatchStart is the first event of a watch, and the event that reports missing
// changes.
type WatchStart struct {
	Path   string `json:"path"`
	Cursor string `json:"cursor"`
	Reset  bool   `json:"reset"`
}
