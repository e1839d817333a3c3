package builds

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// pieceBytes is the size of the pieces in which programs are kept, in bytes: each is read
// into memory whole.
const pieceBytes = 16 << 20

// Store keeps signed builds in Blobs: the programs in pieces named after their content, and
// the signature of each build. Nothing in it is trusted.
type Store struct{ Blobs sandbox.Blobs }

func signatureBlob(build string) string { return "builds/" + build + ".json" }

func pieceBlob(p Program, i int) string { return fmt.Sprintf("builds/programs/%s-%d", p.SHA256, i) }

// pieces is the number of pieces of a program.
func pieces(p Program) int { return int((p.Bytes + pieceBytes - 1) / pieceBytes) }

// Put keeps a build whose programs are in a folder. The signature comes last. It replaces
// earlier copies.
func (s Store) Put(ctx context.Context, signed Signed, dir string) error {
	for _, p := range signed.Programs {
		if err := s.putProgram(ctx, p, filepath.Join(dir, p.Name)); err != nil {
			return fmt.Errorf("upload %s of build %s: %w", p.Name, signed.Build, err)
		}
	}
	return s.PutSignature(ctx, signed)
}

// PutSignature keeps the signature of a build whose programs were Put.
func (s Store) PutSignature(ctx context.Context, signed Signed) error {
	raw, err := signed.Marshal()
	if err == nil {
		err = s.Blobs.Put(ctx, signatureBlob(signed.Build), raw)
	}
	if err != nil {
		return fmt.Errorf("upload the signature of build %s: %w", signed.Build, err)
	}
	return nil
}

func (s Store) putProgram(ctx context.Context, p Program, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	buf := make([]byte, pieceBytes)
	for i := range pieces(p) {
		n, err := io.ReadFull(f, buf)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		sum.Write(buf[:n])
		if err := s.Blobs.Put(ctx, pieceBlob(p, i), buf[:n]); err != nil {
			return err
		}
	}
	if hex.EncodeToString(sum.Sum(nil)) != p.SHA256 {
		return errors.New("the file has changed since it was signed: sign the build again")
	}
	return nil
}

// Signature returns the signature of a build, an unverified Signed as JSON;
// NotFound without one.
func (s Store) Signature(ctx context.Context, build string) ([]byte, error) {
	raw, err := s.Blobs.Get(ctx, signatureBlob(build))
	if err == nil && len(raw) > MaxSignature {
		err = refused(build, "its signature cannot be read", fmt.Errorf("it has %d bytes", len(raw)))
	}
	return raw, err
}

// Copy writes the content of all programs of a build, one after the other. The receiver
// verifies it.
func (s Store) Copy(ctx context.Context, m Manifest, to io.Writer) error {
	for _, p := range m.Programs {
		left := p.Bytes
		for i := range pieces(p) {
			piece, err := s.Blobs.Get(ctx, pieceBlob(p, i))
			if errors.Is(err, sandbox.NotFound) {
				return damaged(m.Build, p.Name, err)
			}
			if err != nil {
				return err
			}
			if int64(len(piece)) != min(left, pieceBytes) {
				return damaged(m.Build, p.Name, fmt.Errorf("piece %d has %d bytes", i, len(piece)))
			}
			left -= int64(len(piece))
			if _, err := to.Write(piece); err != nil {
				return err
			}
		}
	}
	return nil
}
