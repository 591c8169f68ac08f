package rules

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/frontmatter"
)

// Definitions is the directory with the texts that pods may name, in place of a text of their own. DIR/NAME.yaml is the
// definition DIR/NAME. Each DIR is a ConfigMap, which kubelet keeps: its files are links to ..data/NAME.yaml, and ..data is
// a link that kubelet replaces when all files of the next version are there. Whoever writes one ConfigMap has no say in another.
// "" is a plugin without definitions.
type Definitions string

const (
	maxPart  = 128 // bytes of either part of a name
	attempts = 3   // to open a file: kubelet removes the last version as soon as ..data leads to the next one
)

// CheckName returns an error for what is no name of a definition.
func CheckName(name string) error {
	if dir, file, _ := strings.Cut(name, "/"); fields.IsPlainName(dir, maxPart) && fields.IsPlainName(file, maxPart) {
		return nil
	}
	return fmt.Errorf("%.64q is no name of a definition: want DIRECTORY/NAME, of letters, digits, '.', '_' and '-'", name)
}

// Read returns the text of a definition, as CheckNarrow takes it. No link leads out of the definition's directory. Errors
// name the file, and the line.
func (d Definitions) Read(name string) (string, error) {
	if d == "" {
		return "", errors.New("this node has no definitions: start the plugin with --definitions")
	}
	if err := CheckName(name); err != nil {
		return "", err
	}
	dir, file, _ := strings.Cut(name, "/")
	text, err := d.text(dir, file+".yaml")
	if err == nil {
		err = CheckNarrow(text)
	}
	if err != nil {
		return "", fields.ErrorAt(path.Join(string(d), name)+".yaml", 0, "", err)
	}
	return text, nil
}

func (d Definitions) text(dir, file string) (text string, err error) {
	base, err := os.OpenRoot(string(d))
	if err != nil {
		return "", err
	}
	defer base.Close()
	root, err := base.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	var f *os.File
	for range attempts {
		// O_NONBLOCK: another writer may have put a FIFO there.
		if f, err = root.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, errors.New("is no regular file: kubelet's ConfigMaps have no others"))
	}
	all, err := bounded.Read(f, frontmatter.MaxKeys)
	return string(all), err
}
