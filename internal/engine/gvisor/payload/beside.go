//go:build !payload

package payload

import "io/fs"

func embedded(string) (fs.File, error) { return nil, fs.ErrNotExist }
