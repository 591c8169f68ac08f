package config

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/paths"
)

// userText returns the text of the user's scopefs.yaml, if there is one.
func userText(p Paths) ([]text, error) {
	if p.User == "" {
		return nil, nil
	}
	own, err := paths.OfUser()
	if err != nil {
		return nil, err
	}
	for _, bases := range []string{own.Base, filepath.Dir(own.State)} { // agents write there
		if at := paths.Real(bases); strings.HasPrefix(paths.Real(p.User), at+"/") {
			return nil, &fields.FileError{File: p.User, Err: fmt.Errorf("is in %s, where agents have files: move it out", at)}
		}
	}
	dir, err := folder.OpenUser(p.Base, p.User, "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &fields.FileError{File: p.User, Err: err}
	}
	defer dir.Close()
	file := filepath.Join(p.User, paths.HostFile)
	read, err := dir.Read(paths.HostFile, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &fields.FileError{File: file, Err: err}
	}
	return []text{{file, read.Data}}, nil
}
