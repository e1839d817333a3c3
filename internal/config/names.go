package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// namePrefix begins every variable of Cloud Sandbox alone.
const namePrefix = "CLOUD_SANDBOX_"

// otherNames are documented variables that are not settings.
var otherNames = []string{
	"CLOUD_SANDBOX_URL", "CLOUD_SANDBOX_API_KEY", "CLOUD_SANDBOX_USER_ID", // of clients
	"CLOUD_SANDBOX_REGISTRIES", "npm_config_registry", // of the builder
}

// quietNames are variables that are no settings of an operator. The environment of a server
// may contain them: from the launcher, from a Guest's shells inside a Sandbox, and from tests
// and scripts.
var quietNames = []string{
	"CLOUD_SANDBOX_LAUNCH_LISTENERS", "CLOUD_SANDBOX_LAUNCH_HOST", "CLOUD_SANDBOX_LAUNCH_EARLIER",
	"CLOUD_SANDBOX_RUN",
	"CLOUD_SANDBOX_E2E", "CLOUD_SANDBOX_E2E_LANGUAGES", "CLOUD_SANDBOX_TEMPLATES", "CLOUD_SANDBOX_PROGRAMS", "CLOUD_SANDBOX_OLD_GVISOR",
	"CLOUD_SANDBOX_E2B_SDKS", "CLOUD_SANDBOX_GRPCURL", "CLOUD_SANDBOX_MCP_CLIENTS", "CLOUD_SANDBOX_PEBBLE", "CLOUD_SANDBOX_VERSITYGW", "CLOUD_SANDBOX_POSTGRES", "CLOUD_SANDBOX_REDIS", "CLOUD_SANDBOX_STORE_RACES",
}

// documentedNames are the variables that an operator or a user may set, sorted.
func documentedNames() []string {
	names := slices.Clone(otherNames)
	for _, s := range settings {
		names = append(names, s.env)
	}
	for role := range addresses {
		if role != RoleGateway { // the gateway's address is a setting
			names = append(names, addrVariable(role))
		}
	}
	slices.Sort(names)
	return names
}

// kubernetesName matches the variables that Kubernetes sets in every container for
// a Service whose name begins with "cloud-sandbox".
var kubernetesName = regexp.MustCompile(`^CLOUD_SANDBOX_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// ofKubernetes reports whether Kubernetes set a variable. CLOUD_SANDBOX_PORT with a
// number is not a variable of Kubernetes: an operator may have meant a setting.
func ofKubernetes(name, value string) bool {
	return kubernetesName.MatchString(name) && (!strings.HasSuffix(name, "_PORT") || strings.Contains(name, "SERVICE_PORT") || strings.Contains(value, "://") ||
		strings.HasSuffix(name, "_TCP_PORT") || strings.HasSuffix(name, "_UDP_PORT") || strings.HasSuffix(name, "_SCTP_PORT"))
}

// maxTypos is the edit distance up to which a name is a misspelling.
const maxTypos = 2

// checkNames finds the variables of environ, each NAME=VALUE, that are intended as
// settings but are not. An unknown name with our prefix, or a misspelling of one, is a
// problem. A name that resembles a setting without our prefix may be another program's:
// it is a warning. Empty variables count as absent. Both results are in the order of the
// names.
func checkNames(environ []string) (warnings []string, problem error) {
	known := documentedNames()
	var problems []error
	environ = slices.Clone(environ)
	slices.Sort(environ)
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if value == "" || slices.Contains(known, name) || slices.Contains(quietNames, name) || ofKubernetes(name, value) {
			continue
		}
		near, typos := nearest(name, known)
		switch ours := strings.HasPrefix(near, namePrefix); {
		case hasPrefix(name), ours && typos <= maxTypos:
			problems = append(problems, fmt.Errorf("%s: no setting has this name; the nearest is %s. Correct the name, or unset the variable", name, near))
		case typos <= maxTypos:
			warnings = append(warnings, fmt.Sprintf("%s is not a setting and is not used; %s is one", name, near))
		}
	}
	return warnings, errors.Join(problems...)
}

// hasPrefix reports whether a name begins with our prefix, in any spelling.
func hasPrefix(name string) bool {
	return strings.HasPrefix(plain(name), plain(namePrefix))
}

// plain is a name in capitals, without separators.
func plain(name string) string {
	return strings.NewReplacer("_", "", "-", "", ".", "").Replace(strings.ToUpper(name))
}

// nearest returns the known name with the least distance to name, and that distance. Case
// and separators are ignored; the first of several is returned.
func nearest(name string, known []string) (near string, typos int) {
	near = slices.MinFunc(known, func(a, b string) int {
		return cmp.Compare(distance(plain(name), plain(a)), distance(plain(name), plain(b)))
	})
	return near, distance(plain(name), plain(near))
}

// distance is how many letters must be inserted, deleted, replaced or swapped with the
// next one to turn a into b. Names longer than maxName count as far from all.
func distance(a, b string) int {
	const maxName = 128
	if len(a) > maxName || len(b) > maxName {
		return maxName
	}
	var before, last []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, replaced)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
