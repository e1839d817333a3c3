package server

import (
	"os"
	"strings"
)

// profile is what login shells read first.
const profile = "/etc/profile"

// distributionPaths are the values that the profiles of Debian and Alpine set PATH
// to, whatever it was.
var distributionPaths = []string{
	searchPath,
	"/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games",
	"/usr/local/bin:/usr/bin:/bin",
}

// keepPath has login shells keep the PATH that they are started with: that of the
// Template, the Sandbox or the request, which a distribution's profile would
// replace. What somebody else wrote into that file stays.
func keepPath(file string) {
	text, err := readSmall(file)
	if err != nil {
		return
	}
	keeping := profileKeepingPath(string(text))
	if keeping == string(text) {
		return
	}
	// In place: owner and mode stay. A failure leaves the distribution's PATH.
	_ = os.WriteFile(file, []byte(keeping), 0o644)
}

// profileKeepingPath is the text of a profile in which the lines that set PATH to
// what a distribution has do so only where there is none.
func profileKeepingPath(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		for _, value := range distributionPaths {
			set := strings.TrimPrefix(strings.TrimSpace(line), "export ")
			if set == `PATH="`+value+`"` || set == "PATH="+value {
				line = strings.Replace(line, set, `PATH="${PATH:-`+value+`}"`, 1)
				break
			}
		}
		out.WriteString(line)
	}
	return out.String()
}
