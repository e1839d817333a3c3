package template

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Tool is a program of the host that builds need.
type Tool struct {
	Binary  string
	Package string // of Debian and Ubuntu
	Why     string
}

var tools = []Tool{
	{"mkfs.erofs", "erofs-utils", "makes root filesystem images"},
	{"debootstrap", "debootstrap", "builds the template base where no registry answers"},
	{"mount", "mount", "gives package scripts a /proc of their own"},
}

// MissingTools returns the tools that a build of any Source may need and the host lacks.
func MissingTools() []Tool {
	var missing []Tool
	for _, t := range tools {
		if _, err := exec.LookPath(t.Binary); err != nil {
			missing = append(missing, t)
		}
	}
	return missing
}

// needTools returns Unsupported, naming the packages, when one of binaries is missing.
func needTools(binaries ...string) error {
	var says, packages []string
	for _, t := range MissingTools() {
		if slices.Contains(binaries, t.Binary) {
			says = append(says, fmt.Sprintf("%s, which %s,", t.Binary, t.Why))
			packages = append(packages, t.Package)
		}
	}
	if len(says) == 0 {
		return nil
	}
	return sandbox.Errorf(sandbox.Unsupported, "%s is missing: apt-get install %s", strings.Join(says, " and "), strings.Join(packages, " "))
}
