package server

import (
	"os"
	"strings"
)

// profile is the file that login shells read first.
const profile = "/etc/profile"

// distributionPaths are the values with which the profiles of Debian and Alpine replace
// any earlier PATH.
var distributionPaths = []string{
	searchPath,
	"/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games",
	"/usr/local/bin:/usr/bin:/bin",
}

// keepPath has login shells keep the PATH that they are started with, which comes
// from the Template, the Sandbox or the request. A distribution's profile would
// replace it. Other changes to that file stay.
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

// profileKeepingPath changes the lines of a profile that set PATH to a
// distribution's value: they now do so only where PATH is unset.
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
