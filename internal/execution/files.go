package execution

import (
	"context"
	"io"
)

// Trees works on directory trees in a Guest. User is the acting user in all requests;
// empty: the Sandbox's default. Paths are absolute and clean. Errors are as for Guest.
type Trees interface {
	// Copy copies a file, link or directory and returns the destination's Entry. An
	// existing destination is a Conflict, unless Overwrite is set.
	Copy(ctx context.Context, req CopyRequest) (Copied, error)
	// Chmod changes permissions and returns how many were changed.
	Chmod(ctx context.Context, req ChmodRequest) (changed int64, err error)
	// Search looks for lines in files, or for files by name.
	Search(ctx context.Context, req SearchRequest) (Found, error)
	// Archive streams the contents of a directory. The caller closes the stream; an end
	// other than io.EOF means that the archive is incomplete.
	Archive(ctx context.Context, user, path string, format ArchiveFormat) (io.ReadCloser, error)
	// Extract unpacks an archive into a directory, which it creates if missing, and
	// writes nowhere else. An empty format is detected from the content.
	Extract(ctx context.Context, user, path string, format ArchiveFormat, archive io.Reader) (Extracted, error)
	// Replace replaces text in files, and each file as a whole. If the number of
	// occurrences is not the expected one, it returns Conflict and changes nothing.
	Replace(ctx context.Context, req ReplaceRequest) (Replaced, error)
	// Watch calls handle serially, first with the starting position and then with each
	// change, until handle fails, ctx ends, or the directory is removed (NotFound). It
	// never returns nil.
	Watch(ctx context.Context, req WatchRequest, handle func(WatchEvent) error) error
	// Changes returns the changes since a cursor, oldest first.
	Changes(ctx context.Context, req WatchRequest) (WatchPosition, []FileChange, error)
}

// CopyRequest asks for a copy.
type CopyRequest struct {
	User                string
	Source, Destination string // Destination is the path of the copy itself
	Recursive           bool   // needed for a directory
	Overwrite           bool
}

// Copied is the result of a copy.
type Copied struct {
	Entry        Entry
	Files, Bytes int64
	FilesSkipped int64 // sockets, pipes and devices within a directory
}

// ChmodRequest asks for other permissions.
type ChmodRequest struct {
	User      string
	Path      string
	Mode      uint32 // at most 07777
	Recursive bool
}

// FileSelection chooses files below a path as ripgrep does.
type FileSelection struct {
	Path     string
	Globs    []string // at least one must match, and none with the prefix "!"
	Hidden   bool     // also names that begin with a dot
	NoIgnore bool     // also files that .gitignore and .ignore exclude
}

// Bounds of a search.
const (
	MaxSearchResults = 10_000
	MaxSearchContext = 20 // lines
)

// SearchRequest asks for lines, or for files.
type SearchRequest struct {
	User  string
	Files FileSelection
	// Pattern is RE2, or plain text with Literal; empty: files by name only.
	Pattern    string
	Literal    bool
	IgnoreCase bool
	Word       bool
	FilesOnly  bool
	MaxResults int // 1 to MaxSearchResults
	Context    int // lines before and after, at most MaxSearchContext
}

// Found is the result of a search, in order of paths and lines.
type Found struct {
	Matches   []Match
	Files     int64 // that were searched
	Truncated bool  // there may be more
}

// Match is a line that matches, or a file.
type Match struct {
	Path          string
	Line          int64 // from 1; 0 for a file as such
	Text          string
	Cut           bool // Text is the beginning of a longer line
	Spans         []Span
	Before, After []string
}

// Span is a match of the pattern in the text, as byte offsets.
type Span struct{ Start, End int }

// ArchiveFormat is the format of an archive stream.
type ArchiveFormat string

// The formats of archives.
const (
	Tar   ArchiveFormat = "tar"
	TarGz ArchiveFormat = "tar.gz"
	Zip   ArchiveFormat = "zip"
)

// Extracted is the result of unpacking an archive.
type Extracted struct {
	Files, Directories, Links int64
	Skipped                   int64 // devices and other special files
	Bytes                     int64
}

// Bounds of a replacement, in bytes.
const (
	MaxReplacePattern = 64 << 10
	MaxReplacement    = 1 << 20
)

// ReplaceRequest asks for other text in files.
type ReplaceRequest struct {
	User        string
	Files       FileSelection
	Pattern     string // plain text; with Regex, RE2
	Replacement string // with Regex, $1 and ${name} are groups
	Regex       bool
	IgnoreCase  bool
	Expected    *int64 // required number of occurrences; nil: any
	DryRun      bool   // only count
}

// Replaced is the result of a replacement, files in order of their paths.
type Replaced struct {
	Count    int64
	Files    []ReplacedFile
	TooLarge int64 // files that were skipped
}

// ReplacedFile is a file with other text.
type ReplacedFile struct {
	Path  string
	Count int64
	Lines []int64 // where the first occurrences began, from 1
}

// MaxCursor bounds a cursor, in bytes.
const MaxCursor = 64

// WatchRequest asks for changes below a directory.
type WatchRequest struct {
	User      string
	Path      string
	Recursive bool
	Since     string // a cursor of an earlier answer; empty: from now on
}

// WatchEvent is a position or a change; the other one is nil.
type WatchEvent struct {
	Position *WatchPosition
	Change   *FileChange
}

// WatchPosition is a position in the sequence of changes.
type WatchPosition struct {
	Cursor string
	Reset  bool // changes before it are missing
}

// FileChange is one change of a file.
type FileChange struct {
	Type   ChangeType
	Path   string
	Cursor string // after it
}

// ChangeType is the kind of change of a file.
type ChangeType string

// The types of changes.
const (
	FileCreated    ChangeType = "created"
	FileModified   ChangeType = "modified"
	FileAttributes ChangeType = "attributes" // permissions or owner
	FileRemoved    ChangeType = "removed"
	FileRenamed    ChangeType = "renamed" // the old name
)
