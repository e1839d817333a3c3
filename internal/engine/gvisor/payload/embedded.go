//go:build payload

package payload

import (
	"embed"
	"io/fs"
)

//go:embed files/*.zst
var files embed.FS

func embedded(name string) (fs.File, error) { return files.Open("files/" + name) }
