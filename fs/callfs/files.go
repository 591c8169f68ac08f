package callfs

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Files are the files of one call. They do not change.
type Files struct {
	first uint64 // inode number of the first file; the others follow
	names []string
	data  [][]byte
	made  time.Time
}

// inodes counts the inode numbers in use, without the root's.
var inodes atomic.Uint64

// New returns files with the given content by name. It keeps the slices, which must not
// change. It returns an error for a name that no file can have.
func New(content map[string][]byte) (*Files, error) {
	f := &Files{made: time.Now()}
	for name := range content {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > unix.NAME_MAX {
			return nil, fmt.Errorf("%.64q cannot be the name of a file", name)
		}
		f.names = append(f.names, name)
	}
	slices.Sort(f.names)
	for _, name := range f.names {
		f.data = append(f.data, content[name])
	}
	n := uint64(len(f.names))
	f.first = rootInode + 1 + inodes.Add(n) - n
	return f, nil
}

// Has reports whether these are the files.
func (f *Files) Has(content map[string][]byte) bool {
	if f == nil || len(content) != len(f.names) {
		return false
	}
	for i, name := range f.names {
		if data, ok := content[name]; !ok || !bytes.Equal(data, f.data[i]) {
			return false
		}
	}
	return true
}

// find returns the index of the file with a name.
func (f *Files) find(name string) (i int, ok bool) {
	if f == nil {
		return 0, false
	}
	return slices.BinarySearch(f.names, name)
}

// at returns the index of the file with an inode number.
func (f *Files) at(inode uint64) (i int, ok bool) {
	if f == nil || inode < f.first || inode-f.first >= uint64(len(f.names)) {
		return 0, false
	}
	return int(inode - f.first), true
}
