package contextfs

import (
	"slices"
	"sync"

	"github.com/scopefs/scopefs/fs/callfs"
	"github.com/scopefs/scopefs/internal/contextfs/wire"
	scoped "github.com/scopefs/scopefs/scope/context"
)

// Files are the files of one call. They do not change.
type Files struct {
	call    string
	content map[string][]byte
	known   chan struct{} // closed when the content is known, or the files have ended

	mu     sync.Mutex
	filled bool
	ended  bool
	mounts []*Mount // whose process has them
}

// New returns the files of a call with this content by name. It keeps the slices, which must not change. A name that no file can
// have is an error. The caller must End them.
func New(call string, content map[string][]byte) (*Files, error) {
	f := expected(call)
	return f, f.fill(content)
}

// ContentOf returns the content of a file for each scope.
func ContentOf(s scoped.Scoped) map[string][]byte {
	content := map[string][]byte{}
	for name, messages := range s.Files() {
		content[name+".json"] = messages
	}
	return content
}

// expected returns the files of a call of the last daemon, whose content is not known yet.
func expected(call string) *Files { return &Files{call: call, known: make(chan struct{})} }

// fill sets the content.
func (f *Files) fill(content map[string][]byte) error {
	if _, err := callfs.New(content); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.filled && !f.ended {
		f.content, f.filled = content, true
		close(f.known)
	}
	return nil
}

// End makes the processes drop the files, and does not wait for them. From then on no thread has the files.
func (f *Files) End() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.filled && !f.ended {
		close(f.known)
	}
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
	if !f.ended && !slices.Contains(f.mounts, m) {
		f.mounts = append(f.mounts, m)
	}
	return !f.ended
}

// message returns what the process gets of the files.
func (f *Files) message() (entries []wire.Entry, content []byte) {
	for name, data := range f.content {
		entries, content = append(entries, wire.Entry{Name: name, Size: len(data)}), append(content, data...)
	}
	return entries, content
}
