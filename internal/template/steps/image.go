package steps

import (
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// ownImages begin the names of E2B's own images, which templates of ours are.
const ownImages = "e2bdev/"

// Image is what a build pulls that begins with an image, and the Template that stands
// in for it where no registry answers; empty: none. Nothing is pulled for E2B's own
// images.
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
