// Command clients fetches a package of the npm registry without npm, for a
// machine that has neither npm nor a program for downloads:
//
//	clients URL INTEGRITY DIR
//
// unpacks it into the new directory DIR, if the archive has the SHA-512 that
// INTEGRITY says, in the registry's form: sha512-BASE64.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"time"
)

const (
	patience = 3 * time.Minute
	largest  = 256 << 20 // bytes of an archive
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: clients URL INTEGRITY DIR")
		os.Exit(2)
	}
	if err := fetch(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func fetch(url, integrity, dir string) error {
	archive, err := download(url)
	if err != nil {
		return err
	}
	sum := sha512.Sum512(archive)
	if got := "sha512-" + base64.StdEncoding.EncodeToString(sum[:]); got != integrity {
		return fmt.Errorf("is %s, not %s", got, integrity)
	}
	return unpack(archive, dir)
}

func download(url string) ([]byte, error) {
	client := http.Client{Timeout: patience}
	resp, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, largest))
}

// unpack writes an archive's regular files, without the directory that all are
// in. It stays in dir, whatever the names are.
func unpack(archive []byte, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		_, name, ok := strings.Cut(h.Name, "/")
		if !ok || h.Typeflag != tar.TypeReg {
			continue
		}
		if err := write(root, name, h.FileInfo().Mode().Perm()|0o644, r); err != nil {
			return err
		}
	}
}

func write(root *os.Root, name string, mode os.FileMode, from io.Reader) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
