// Package echo has the messages between a view and the processes that repeat in sandboxes what the host has changed. inotify(7) reports
// only operations that pass through a mount. So a process in a sandbox does one there, such as truncate(2) to the present size. The
// view recognises the process's thread, and answers without changing anything.
package echo

import "encoding/binary"

// The bounds of messages.
const (
	MaxActs    = 64       // of a Request
	MaxPaths   = 24 << 10 // bytes of all paths of a Request
	MaxDir     = 3 << 10  // bytes of Act.Dir: the process opens it by one path
	MaxWatched = 4096     // of a Reply
	MaxMessage = 64 << 10 // bytes of a message as JSON
)

// Request is for one process. Without Acts the process looks for inotify watches.
type Request struct {
	Token string `json:"token,omitempty"` // a name that the thread looks up in the view's root before the Acts
	Acts  []Act  `json:"acts,omitempty"`
}

// Act is what the thread does about one name: remove it, create it, truncate it, in this order.
type Act struct {
	Dir    []byte `json:"dir,omitempty"`    // relative to the view's root
	Name   []byte `json:"name,omitempty"`   // in Dir; none: the mode of Dir is set to what it is
	Remove uint64 `json:"remove,omitempty"` // the inode number that the name has until it is removed; 0: it is not removed
	IsDir  bool   `json:"is_dir,omitempty"` // a directory is removed
	Create uint32 `json:"create,omitempty"` // the type bits of its mode; 0: it is not created
	Modify bool   `json:"modify,omitempty"` // its size is set to what it is
}

// Reply is the answer to a Request. Watched and All are empty with Acts.
type Reply struct {
	Ended   bool   `json:"ended,omitempty"`   // the process was killed: its threads are no more
	Watched []byte `json:"watched,omitempty"` // the inode numbers of what is watched in the view, eight bytes each
	All     bool   `json:"all,omitempty"`     // there are more than MaxWatched
}

// Add adds an inode number.
func (r *Reply) Add(inode uint64) { r.Watched = binary.LittleEndian.AppendUint64(r.Watched, inode) }

// Inodes returns the inode numbers.
func (r *Reply) Inodes() (all []uint64) {
	for rest := r.Watched; len(rest) >= 8; rest = rest[8:] {
		all = append(all, binary.LittleEndian.Uint64(rest))
	}
	return all
}
