package listing

import (
	"cmp"
	"hash/fnv"
	"slices"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// Entries are those of a directory by name, without "." and "..".
type Entries map[string]fuse.DirEntry

// Read returns the entries of a directory.
func Read(root *beneath.Root, rel string) (Entries, error) {
	f, _, err := root.OpenAny(rel, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, buf := Entries{}, make([]byte, bufferSize)
	for {
		n, err := f.ReadDirent(buf)
		if err != nil || n <= 0 {
			return all, err
		}
		for rest := buf[:n]; len(rest) > 0; {
			var e fuse.DirEntry
			rest = rest[e.Parse(rest):]
			if e.Name != "." && e.Name != ".." {
				all[e.Name] = e
			}
		}
	}
}

// Merge returns the entries of a directory of two layers in the order of their offsets. The upper layer
// decides about a name that held reports. An offset is a hash of the name, and stays the same while other names come and go.
func Merge(mine, theirs Entries, held func(name string) bool) []fuse.DirEntry {
	for name, e := range mine {
		switch was, there := theirs[name]; {
		case !held(name):
		case there && e.Mode == unix.S_IFDIR && was.Mode == unix.S_IFDIR:
		default:
			theirs[name] = e
		}
	}
	all := make([]fuse.DirEntry, 0, len(theirs)+2)
	for name, e := range theirs {
		sum := fnv.New64a()
		sum.Write([]byte(name))
		e.Name, e.Off = name, sum.Sum64()>>2+3
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b fuse.DirEntry) int { return cmp.Or(cmp.Compare(a.Off, b.Off), cmp.Compare(a.Name, b.Name)) })
	return append([]fuse.DirEntry{{Name: ".", Mode: unix.S_IFDIR, Off: 1}, {Name: "..", Mode: unix.S_IFDIR, Off: 2}}, all...)
}
