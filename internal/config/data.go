package config

import "fmt"

// DataFolder returns the absolute path of the data folder, by the same rules as
// Load, for commands that need nothing else.
func DataFolder(flags map[string]string, getenv func(string) string) (string, error) {
	c := defaults(getenv)
	for _, s := range settings {
		if s.flag != FlagData {
			continue
		}
		value, given := flags[s.flag]
		if !given {
			value = getenv(s.env)
		}
		if value == "" {
			continue
		}
		if err := s.apply(&c, value); err != nil {
			return "", fmt.Errorf("--%s: %w", s.flag, err)
		}
	}
	return c.Data, c.checkData()
}

// SandboxImage returns the image that the Template "base" is made of, by the
// same rules as Load.
func SandboxImage(getenv func(string) string) (string, error) {
	c := defaults(getenv)
	if v := getenv("SANDBOX_IMAGE"); v != "" {
		c.SandboxImage = v
	}
	return c.SandboxImage, c.checkImage()
}
