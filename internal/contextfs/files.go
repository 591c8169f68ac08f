package contextfs

import (
	"sync"

	"github.com/scopefs/scopefs/fs/callfs"
)

// Files are the files of one call. They do not change.
type Files struct {
	content map[string][]byte

	mu     sync.Mutex
	ended  bool
	mounts []*Mount // whose process has them
}

// New returns files with this content by name. It keeps the slices, which must not change. A name that no file can have is
// an error. The caller must End them.
func New(content map[string][]byte) (*Files, error) {
	if _, err := callfs.New(content); err != nil {
		return nil, err
	}
	return &Files{content: content}, nil
}

// End makes the processes drop the files, and does not wait for them. From then on no thread has the files.
func (f *Files) End() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for _, m := range f.mounts {
		go m.drop(f)
	}
	f.mounts = nil
}

// hold notes that the process of a mount gets the files. It reports false when they have ended.
func (f *Files) hold(m *Mount) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ended {
		f.mounts = append(f.mounts, m)
	}
	return !f.ended
}

// message returns what the process gets of the files.
func (f *Files) message() (entries []entry, content []byte) {
	for name, data := range f.content {
		entries, content = append(entries, entry{name, len(data)}), append(content, data...)
	}
	return entries, content
}
