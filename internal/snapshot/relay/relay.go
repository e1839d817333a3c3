// Package relay connects functions that export a state with functions that import one.
package relay

import (
	"errors"
	"io"
)

// Run passes the output of an export to an import while both run. It returns the error of
// the import, or the error of the export if that is the reason.
func Run(exports func(io.Writer) error, imports func(io.Reader) error) error {
	content, in := io.Pipe()
	exported := make(chan error, 1)
	go func() {
		err := exports(in)
		in.CloseWithError(err)
		exported <- err
	}()
	err := imports(content)
	content.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	if exportErr := <-exported; err != nil && exportErr != nil && !errors.Is(exportErr, io.ErrClosedPipe) {
		return exportErr
	}
	return err
}
