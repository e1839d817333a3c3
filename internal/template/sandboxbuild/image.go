package sandboxbuild

import (
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// ownImages is the prefix of E2B's own images, which this server's Templates replace.
const ownImages = "e2bdev/"

// Image returns the image to pull for a build that begins with asked, and the Template
// that replaces it if no registry answers; empty: none. E2B's own images are not pulled.
func (s *Service) Image(asked string) (pull, standIn string, err error) {
	const maxImage = 512
	if len(asked) > maxImage {
		return "", "", sandbox.Errorf(sandbox.Invalid, "the name of an image may have at most %d bytes", maxImage)
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(asked, "docker.io/"), "library/"), "@")
	repository := name
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") { // else it is the port of a registry
		repository = name[:i]
	}
	for _, try := range []string{name, repository + ":*", repository} {
		if meant, ok := s.cfg.StandIns[try]; ok {
			standIn = meant
			break
		}
	}
	if strings.HasPrefix(name, ownImages) && standIn != "" {
		return "", standIn, nil
	}
	return asked, standIn, nil
}
